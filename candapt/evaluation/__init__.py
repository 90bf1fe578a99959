"""Outputs over whole domains, and how good they are."""

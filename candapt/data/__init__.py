"""Domains: reading, transforming and sampling them."""

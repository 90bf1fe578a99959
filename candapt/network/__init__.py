"""Backbones, domain-specific batch norm and heads."""

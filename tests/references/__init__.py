"""Slow versions of the losses, written the most obvious way, that the real ones are checked against."""

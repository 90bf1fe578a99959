"""Files and folders: atomic writes, safe reading, locks, run folders and their provenance, interruption."""

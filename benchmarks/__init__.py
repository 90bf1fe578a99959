"""What the tables say, measured: each module writes one file of `results/`, and `tables` writes the tables from them."""

"""What the tables say, measured: each module writes one file of `results/`, and `tables` makes tables of them."""

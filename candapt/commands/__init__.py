"""What the commands do, as plain functions of typed arguments: a module for each command or family of them."""

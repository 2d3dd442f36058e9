"""How long clients wait for each other."""

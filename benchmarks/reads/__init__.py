"""How fast entries are read, by ranges and by groups."""

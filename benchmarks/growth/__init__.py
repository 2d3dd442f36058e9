"""How does a cost grow with the work: entries, streams, groups, connections, bytes?  One plot a question."""

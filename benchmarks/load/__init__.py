"""What puts load on a server, and what watches it meanwhile."""

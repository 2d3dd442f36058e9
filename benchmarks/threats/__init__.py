"""What hostile clients can do."""

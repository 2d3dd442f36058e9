"""What Spark and readers of columns do with snapshots."""

"""What it takes to keep a store: starts, memory, disk, rewrites, snapshots, tools, replicas."""

"""How fast entries get in: rates, clients, connections, disks."""

"""What people and machines see: status snapshots, metrics, health, HTTP, logs."""

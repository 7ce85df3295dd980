"""Observability of the service: status snapshots, metrics, health, HTTP, logs."""

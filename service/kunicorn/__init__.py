"""kunicorn: gunicorn for Kafka consumers."""

__version__ = "0.1.0"

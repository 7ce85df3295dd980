"""Outputs of handlers on their way to the brokers: collected, sent, committed."""

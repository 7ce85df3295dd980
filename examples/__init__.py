"""Handlers to start from; the tests run them."""

"""Ours beside every peer: the same broker, topics, handlers and audit, in one run. `make bench`"""

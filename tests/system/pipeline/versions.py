"""Versions of Spark on which jobs are tried, beside the one that is installed."""

VERSIONS = ("3.5.9", "4.0.5", "4.1.4", "4.2.1", "4.3.0")

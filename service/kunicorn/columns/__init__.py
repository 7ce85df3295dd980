"""Fetched records as columns, without a Python object for each record: what the compiled decoder promises, and the same
in plain Python to judge it by.
"""

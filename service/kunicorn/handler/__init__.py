"""What a call of the handler is, wherever it runs: how it is called, what becomes of records that fail, how a dead
letter looks. Workers and Spark's tasks share it; it knows neither.
"""

"""`make soak`: groups under thousands of records a second, leg after leg, every way, delivery and fault beside each."""

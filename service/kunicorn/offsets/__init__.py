"""`kunicorn offsets` and `kunicorn lag`: where a group stands, as its brokers know it, and how to put it elsewhere."""

"""`kunicorn dlq`: what is in the dead-letter topic, and back to where it came from."""

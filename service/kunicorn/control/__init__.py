"""`kunicorn pause`, `resume`, `seek`: a running service is asked over its own HTTP, with its token."""

"""`kunicorn replay-one`: one real record through the handler at one's desk. No group is joined, nothing is committed or
sent; what the handler itself does is real.
"""

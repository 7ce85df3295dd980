"""Inter-process communication of supervisor, template and workers: messages over socket pairs, offsets in shared
memory.
"""

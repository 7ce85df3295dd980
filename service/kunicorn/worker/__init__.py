"""The processes that run user code: the template, and the workers forked from it.

`template` imports the handler once and forks; `main` is a worker's birth and death; `control` serves its pipe in a
thread of its own; `loop` fetches, handles and stores in the main thread; `partitions` is the table of grants between
the two. `fetching` is where records come from, `executors` call the handler, `limits` hold calls back, and `produce`
sends what they return. Nothing here talks to the group or commits.
"""

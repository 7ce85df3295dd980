class X:
    def labels(s,**k): return s
    def inc(s,*a): pass
    def observe(s,*a): pass
class Metrics:
    def __getattr__(s,n): return X()
    def add(s,d): pass

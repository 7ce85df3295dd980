def handle(record): pass

"""Handlers that say what is to become of their records."""

HANDLERS = """
import time
from datetime import timedelta

from kunicorn import DeadLetter, Done, Halt, Retry, Skip
from tests.system.bare_worker import noting


class Permanent(Exception):
    pass


class Gone(Permanent):
    pass


SAYS = {
    b"skip": Skip("old"),
    b"letter": DeadLetter("a negative total"),
    b"halt": Halt("wait for me"),
    b"done": Done(),
    b"retry": Retry("locked", after=timedelta(0)),
    b"later": Retry("locked", after=timedelta(hours=1)),
}


def note(record):
    noting.note(f"{record.partition}@{record.offset}={record.value.decode(errors='replace')[:20]}")


def say(record):
    note(record)
    if record.value == b"wait":
        time.sleep(60)
    if record.value == b"exit":
        raise SystemExit(3)
    if record.value == b"gone":
        raise Gone("it is gone")
    if record.value.startswith(b"fail"):
        raise ValueError("no such customer")
    if record.value.startswith(b"raise "):
        raise SAYS[record.value[6:]]
    return SAYS.get(record.value, "anything else")
"""

"""The handler that runs in the pods: each call is told, as it begins and as it ends, to the machine that judges.

The chart mounts this file (`handlerFiles`), so it imports nothing but the standard library, and runs in images of other
commits, too. What `sendall` has returned from is the kernel's to deliver, whatever happens to the process; no volume is
needed for that. Entries are those of `kunicorn.commands.demo.audit`.

It reads its settings from the environment: `AUDIT_COLLECTOR` (host:port), `AUDIT_MEMBER` (the pod's name),
`HANDLER_MS` (a call takes 0 to so many milliseconds at random).
"""

from __future__ import annotations

import json
import os
import random
import socket
import struct
import threading
import time
import zlib
from functools import cache
from pathlib import Path
from typing import Any

BEGIN, END = 1, 2
GREEDY = b"greedy"
"""Whoever handles such a record takes memory until the kernel ends it; in each pod once."""
FAULTY = b"faulty"
"""Cannot be handled by a release whose HANDLER_IS is "broken"."""
REFUSED = b"refused"
"""Where HANDLER_IS is "broken once", its first call in each pod is done with it, and would have it put aside; that of a
faulty one fails."""
HANGING = b"hanging"
"""Its first call in each pod does not end."""
_ONCE = Path("/tmp")
_BOOT = Path("/proc/sys/kernel/random/boot_id")


def handle(record: Any) -> None:
    """Handle one record."""
    _tell(BEGIN, record)
    kind = os.environ.get("HANDLER_IS")
    if record.value == GREEDY and _first("greed"):
        _take_all_memory()
    if record.value == FAULTY and kind == "broken":
        raise ValueError("this handler cannot read faulty records")
    if kind == "broken once" and record.value in (REFUSED, FAULTY) and _first(record.value.decode()):
        if record.value == FAULTY:
            raise ValueError("this handler cannot read faulty records at once")
        _tell(END, record)
        raise LookupError("this handler refuses such records")
    if record.value == HANGING and _first("hang"):
        threading.Event().wait()
    if kind == "leaking":
        _LEAK.append(b"\1" * (1 << 20))
    time.sleep(random.uniform(0, float(os.environ.get("HANDLER_MS", "0")) / 1000))
    _tell(END, record)


def _tell(kind: int, record: Any) -> None:
    at = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    entry = struct.pack("=4q", kind << 32 | record.partition, record.offset, zlib.crc32(record.key or b""), at)
    with _LOCK:
        _line(os.getpid(), record.topic).sendall(entry)


_LOCK = threading.Lock()


@cache
def _line(pid: int, topic: str) -> socket.socket:
    """To the collector; a fork gets one of its own."""
    host, _, port = os.environ["AUDIT_COLLECTOR"].rpartition(":")
    line = socket.create_connection((host, int(port)), timeout=30)
    member = os.environ.get("AUDIT_MEMBER") or socket.gethostname()
    hello = {"topic": topic, "member": member, "pid": pid, "boot": _BOOT.read_text().strip()}
    line.sendall(json.dumps(hello).encode() + b"\n")
    return line


_LEAK: list[bytes] = []


def _first(what: str) -> bool:
    """Whether this is the first time in this pod."""
    try:
        (_ONCE / what).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def _take_all_memory() -> None:
    taken = []
    while True:
        taken.append(b"\1" * (16 << 20))

"""The memory allocator of the processes that fetch: jemalloc, where it is installed. Small, as it is part of every
start.

librdkafka allocates an object for each message in one thread, and the thread that handles the message frees it. For
each of the two glibc takes the lock of the same arena, and the threads wait for one another; and every response that
was fetched is memory that the kernel maps anew, page by page. Together that is a quarter of a record's processor time
(docs/benchmarks.md). jemalloc and its like keep what a thread frees for that thread, hand it back by the hundred, and
use large pieces again.

A process has its allocator from its first allocation on, so the library is preloaded (`LD_PRELOAD`, ld.so(8)) into the
template, which workers are forked from, and into Spark's Python processes; never into the supervisor.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

AUTO, SYSTEM = "auto", "system"
NAME = "libjemalloc.so.2"
HOW_TO_INSTALL = "Debian and Ubuntu: apt-get install libjemalloc2"
PRELOAD, TUNING = "LD_PRELOAD", "MALLOC_CONF"
_TUNED = "oversize_threshold:0,dirty_decay_ms:250,muzzy_decay_ms:0"
"""jemalloc(3). Left alone it gives what is larger than 8 MiB, as responses are, back to the kernel at once, which costs
three records in ten; and it keeps everything else for ten seconds: a quarter more memory. A quarter of a second is
longer than from one response to the next, and 15 MB less than with a whole one."""
_DIRECTORIES = (f"/usr/lib/{os.uname().machine}-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/lib")


def library_of(wanted: str, environ: Mapping[str, str], directories: Sequence[str] = _DIRECTORIES) -> str:
    """Library to preload for `workers.allocator`; empty for the C library's own. Looks at a few files' names.

    With `auto` an LD_PRELOAD that is there already stays as it is: somebody has chosen.
    """
    if wanted == SYSTEM:
        return ""
    if wanted != AUTO:
        return wanted
    if environ.get(PRELOAD):
        return ""
    found = (str(path) for directory in directories if (path := Path(directory, NAME)).exists())
    return next(found, "")


def with_library(environ: Mapping[str, str], library: str) -> dict[str, str]:
    """The environment with the library preloaded; jemalloc's own tuning in it stays. Pure."""
    if not library:
        return dict(environ)
    preload = ":".join(filter(None, [library, environ.get(PRELOAD)]))
    tuning = {TUNING: _TUNED} if "jemalloc" in library and TUNING not in environ else {}
    return {**environ, PRELOAD: preload, **tuning}


def without_library(environ: Mapping[str, str], library: str) -> dict[str, str]:
    """The environment that `with_library` was given, for the programs that a handler starts. Pure."""
    others = environ.get(PRELOAD, "").removeprefix(library).removeprefix(":")
    ours = {PRELOAD} | ({TUNING} if environ.get(TUNING) == _TUNED else set())
    rest = {name: value for name, value in environ.items() if name not in ours}
    return {**rest, PRELOAD: others} if others else rest


def is_loaded(library: str, pid: int) -> bool:
    """Whether that process has the library: one that cannot be preloaded is passed over by ld.so, with a line on
    standard error. True where nobody may look.
    """
    try:
        mapped = Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return True
    return os.path.realpath(library) in mapped

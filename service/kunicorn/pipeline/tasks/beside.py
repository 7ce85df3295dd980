"""Work of a thread beside a block, in a driver or in a task's process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def beside(work: Callable[[threading.Event], None], name: str) -> Iterator[None]:
    """Run `work` in a thread of that name while the block runs. It is given the event that is set when the block is
    over, and is waited for then: it has to look at the event before each thing that it does, and to wait by it.
    """
    over = threading.Event()
    thread = threading.Thread(target=work, args=(over,), name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()

"""A record of a producer that names a header in another encoding, as the client has it."""

from __future__ import annotations

import ctypes
from typing import Any

from confluent_kafka import Message

HALF_READ = [("a", b"1"), ("\N{REPLACEMENT CHARACTER}", b"2"), ("b", None)]
"""Its headers, as handlers have them."""


class HalfRead(Message):
    """What confluent-kafka makes of a header whose name is not UTF-8: an error, then a tuple with a hole."""

    def __init__(self, offset: int = 0) -> None:
        super().__init__(topic="orders", partition=3, offset=offset, key=b"k", value=b"v")
        make, value = ctypes.pythonapi.PyTuple_New, b"2"
        make.restype = ctypes.py_object
        holed = make(2)
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))
        second = id(holed) + tuple.__basicsize__ + ctypes.sizeof(ctypes.c_void_p)
        ctypes.c_void_p.from_address(second).value = id(value)
        self.kept: Any = [("a", b"1"), holed, ("b", None)]
        self.failed = False

    def headers(self) -> Any:
        """Fails once; whoever looks again and takes the list as it is ends the process."""
        if not self.failed:
            self.failed = True
            raise SystemError("returned a result with an exception set")
        return self.kept

    def set_headers(self, headers: Any) -> None:
        """Replaces the list."""
        self.kept = headers

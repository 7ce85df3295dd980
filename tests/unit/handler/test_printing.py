"""What user code prints reaches its reader in whole lines."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

PROGRAM = """
from kunicorn.handler.load import print_line_by_line
print_line_by_line()
print("orders", 1, "paid")
print("and", "the", "next")
import os; os._exit(0)
"""


@pytest.mark.parametrize("unbuffered", ["1", ""])
def test_a_line_is_one_write_at_once_whether_or_not_python_is_told_to_buffer(unbuffered: str) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered, "PYTHONPATH": os.pathsep.join(sys.path)}
    with ours, theirs:
        subprocess.run(
            [sys.executable, "-c", PROGRAM], env=environment, stdout=theirs.fileno(), check=True, timeout=120
        )
        theirs.close()
        writes = [ours.recv(1000) for _ in range(3)]
    assert writes == [b"orders 1 paid\n", b"and the next\n", b""]

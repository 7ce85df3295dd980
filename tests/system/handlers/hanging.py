"""A copying handler whose client never ends the first call that sends offsets: as librdkafka does where the group's
coordinator was restarted (confluentinc/librdkafka 5456 and 5511).

`HANG_ONCE` names the file that says that it has been so.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from kunicorn import Record, Send
from kunicorn.worker.produce.transactions import Transactions

_send_offsets = Transactions._send_offsets


def _hang_once(self: Transactions) -> Any:
    with suppress(FileExistsError):
        Path(os.environ["HANG_ONCE"]).touch(exist_ok=False)
        threading.Event().wait()
    return _send_offsets(self)


Transactions._send_offsets = _hang_once  # type: ignore[method-assign]


def copy(record: Record) -> Send:
    """One output for each record."""
    return Send(value=f"{record.partition}:{record.offset}", key=record.key)

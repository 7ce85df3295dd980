"""A handler that writes its life down, line by line, into the file that the option `diary` names."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from kunicorn import Record, TopicPartition, Worker

Partitions = Mapping[TopicPartition, int]


class Diary:
    """Async and plain hooks beside one another."""

    async def setup(self, worker: Worker, options: Mapping[str, Any]) -> None:
        self.fd = os.open(options["diary"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self.write(f"setup {worker.slot} {worker.pid == os.getpid()} {worker.group_id} {worker.client_id}")

    def handle(self, record: Record) -> None:
        self.write(f"handle {record.partition}@{record.offset}")

    def on_assigned(self, partitions: Partitions) -> None:
        self.tell("on_assigned", partitions)

    async def on_revoked(self, partitions: Partitions) -> None:
        self.tell("on_revoked", partitions)

    def on_lost(self, partitions: Partitions) -> None:
        self.tell("on_lost", partitions)

    def teardown(self) -> None:
        self.write("teardown")

    def tell(self, hook: str, partitions: Partitions) -> None:
        self.write(f"{hook} " + " ".join(f"{tp.partition}@{offset}" for tp, offset in sorted(partitions.items())))

    def write(self, line: str) -> None:
        os.write(self.fd, f"{line}\n".encode())

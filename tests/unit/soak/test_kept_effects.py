"""What the soak's handlers say of effects that they keep beside the offset."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Message

from kunicorn import Record, TopicPartition
from kunicorn.commands.demo.audit import Kind, read_audit
from tests.soak.plan import seconds, shapes
from tests.system.handlers.soaked import KeptBatches, KeptRecords

WORKER: Any = SimpleNamespace(group_id="g")
BATCH = [Record.of(Message(topic="t", partition=0, offset=at, value=b"1")) for at in range(3)]


@pytest.mark.parametrize(("kept", "given"), [(KeptRecords, BATCH[0]), (KeptBatches, BATCH)], ids=["records", "batches"])
def test_a_process_that_is_killed_right_behind_its_commit_has_said_what_it_handled(
    kept: type[KeptRecords], given: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUNICORN_AUDIT_DIR", str(tmp_path / "audit"))
    monkeypatch.setenv("KUNICORN_AUDIT_MEMBER", "m")
    path, behind_the_commit = str(tmp_path / "effects.db"), 3

    class Dies(kept):  # type: ignore[valid-type, misc]
        @contextmanager
        def transaction(self) -> Iterator[None]:
            with super().transaction():
                yield
            os._exit(behind_the_commit)

    if not (child := os.fork()):
        # Clients that other tests have left would be ended by it, whose threads this process does not have.
        gc.disable()
        try:
            handler = Dies()
            handler.setup(WORKER, {"path": path})
            handler.store_offsets({TopicPartition("t", 0): 0})
            handler.handle(given)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == behind_the_commit
    after = KeptRecords()
    after.setup(WORKER, {"path": path})
    (committed,) = after.load_offsets([]).values()
    after.teardown()
    (file,) = read_audit(tmp_path / "audit")
    ended = [entry.offset for entry in file.entries() if entry.kind == Kind.END]
    assert ended == list(range(committed))
    assert committed


def test_whoever_writes_waits_for_a_member_that_is_frozen_inside_its_transaction(tmp_path: Path) -> None:
    # Others' records failed after 30 s, were handled again by those who had never been hurt, and the leg was broken.
    handler = KeptRecords()
    handler.setup(WORKER, {"path": str(tmp_path / "effects.db")})
    (waits_ms,) = handler.db.execute("PRAGMA busy_timeout").fetchone()
    handler.teardown()
    assert waits_ms > 1000 * max(seconds("freeze-member", shape) for shape in shapes())

"""A password file that is rewritten, emptied and rewritten again."""

from __future__ import annotations

import asyncio
from pathlib import Path
from queue import SimpleQueue

import pytest

from kunicorn.ipc.messages import Password
from kunicorn.settings import KafkaSettings
from kunicorn.supervisor.credentials import watch_password
from tests.unit.settings.files import LEAST, loaded


async def test_each_new_password_is_told_once_and_an_empty_file_is_waited_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "password"
    file.write_text("first")
    lines = [
        'security_protocol = "SASL_SSL"',
        'sasl_mechanism = "PLAIN"',
        'sasl_username = "alice"',
        f'sasl_password_file = "{file}"',
    ]
    kafka = loaded(tmp_path, LEAST.replace("[kafka]\n", "[kafka]\n" + "\n".join(lines) + "\n")).kafka
    reads: SimpleQueue[str] = SimpleQueue()
    read = KafkaSettings.secret

    def observed(settings: KafkaSettings, name: str) -> str | None:
        try:
            return read(settings, name)
        finally:
            reads.put(file.read_text())

    monkeypatch.setattr(KafkaSettings, "secret", observed)
    told: asyncio.Queue[Password] = asyncio.Queue()
    watching = asyncio.create_task(watch_password(kafka, told.put_nowait, interval=0.01))
    for written in ("first", "", "second\n"):
        file.write_text(written)
        while await asyncio.to_thread(reads.get, True, 10) != written:
            pass
    assert await told.get() == Password("alice", "second")
    file.write_text("third")
    assert await told.get() == Password("alice", "third"), "the second was told once"
    watching.cancel()

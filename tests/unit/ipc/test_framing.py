"""Messages as bytes, whatever a handler's texts hold."""

from __future__ import annotations

from kunicorn.ipc.messages import FromWorker, WorkerFailed, decode, encode


def test_half_a_character_arrives_written_out() -> None:
    body = encode(WorkerFailed("handler", "no customer Anna \ud83d \N{SNOWMAN}\x00\n"))
    arrived: FromWorker = decode(body, FromWorker)
    assert arrived == WorkerFailed("handler", "no customer Anna \\ud83d \N{SNOWMAN}\x00\n")

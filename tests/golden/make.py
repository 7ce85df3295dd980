"""Makes the golden files: what the code of commit 645c62f writes for the inputs.

    git worktree add --detach /tmp/645c62f 645c62f
    PYTHONPATH=/tmp/645c62f/service .venv/bin/python -m tests.golden.make
    git worktree remove /tmp/645c62f

That commit's locked requirements are today's, so that today's environment does.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.golden.written import Code, as_file, everything

COMMIT = "645c62f"
FILES = Path(__file__).parent / COMMIT
_ROOT = Path(__file__).parents[2]


def _of(place: str) -> Any:
    """`module:name`, of the code that this process imports."""
    module, _, name = place.partition(":")
    return getattr(import_module(f"kunicorn.{module}"), name)


def _save_export(directory: str, state: Any, form: Iterable[Any]) -> None:
    _of("pipeline.export:_save")(
        _of("pipeline.storage:Directory")(directory), state, _of("pipeline.export:Form")(*form)
    )


def code() -> Code:
    """By the names that things had then."""
    return Code(
        ledger=_of("pipes.ledger:Ledger"),
        position=_of("topics:Position"),
        done_text=_of("pipes.marks:written"),
        replayed=_of("dlq.selection:Replayed"),
        record=_of("records:Record"),
        cause=_of("handling.deadletters:Cause"),
        cause_of=_of("handling.deadletters:cause_of"),
        dead_letters=_of("handling.addresses:dead_letters"),
        retries=_of("handling.addresses:retries"),
        retry_topic=_of("retry_topics:RetryTopic"),
        ours={
            "DeadLetter": _of("outcomes:DeadLetter"),
            "Retry": _of("outcomes:Retry"),
            "BatchError": lambda reason: _of("outcomes:BatchError")(reason, done=2),
            "Undecodable": _of("decoding.undecodable:Undecodable"),
            "NotDelivered": _of("worker.refusals:NotDelivered"),
        },
        topic_partition=_of("topics:TopicPartition"),
        assignors=_of("group.assignors:ASSIGNORS"),
        subscription=_of("group.protocol:Subscription"),
        encode_subscription=_of("wire.consumer_protocol:encode_subscription"),
        encode_assignment=_of("wire.consumer_protocol:encode_assignment"),
        offset_range=_of("pipeline.ranges:OffsetRange"),
        run_state=_of("pipeline.state:RunState"),
        counts=_of("pipeline.state:Counts"),
        run=_of("pipeline.runs:Run"),
        runs=_of("pipeline.runs:Runs"),
        save_export=_save_export,
        offsets_as_json=_of("pipeline.bounds:as_json"),
        take_up=_of("pipeline.hands:take_up"),
        directory=_of("pipeline.storage:Directory"),
        outcome_schema=_of("pipeline.outcome_table:SCHEMA"),
    )


def main() -> None:
    service = Path(import_module("kunicorn").__file__ or "").parents[1]
    if service == _ROOT / "service":
        sys.exit(f"this is today's code; run it with the code of {COMMIT}:\n{__doc__}")
    FILES.mkdir(exist_ok=True)
    for name, table in everything(code()).items():
        (FILES / f"{name}.json").write_text(as_file(table))


if __name__ == "__main__":
    main()

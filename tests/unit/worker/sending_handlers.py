"""Handlers that send the offset of each record, note their calls, and fail where a test wants them to."""

from __future__ import annotations

import threading

from kunicorn import Batch, BatchError, DeadLetter, Record, Send, Skip

calls: list[list[int]] = []
"""Offsets of each call."""
hopeless: set[int] = set()
"""Offsets that cannot be handled."""
goes_on = threading.Event()
"""What `late` and `each_late` wait for."""


def forget() -> None:
    """Before each test."""
    calls.clear()
    hopeless.clear()
    goes_on.clear()


def handled() -> list[int]:
    """Every offset that was in hand, in order."""
    return [offset for call in calls for offset in call]


def each(record: Record) -> Send:
    """One output for each."""
    calls.append([record.offset])
    if record.offset in hopeless:
        raise ValueError(f"{record.offset} cannot be handled")
    return Send(value=b"%d" % record.offset, key=record.key)


def late(record: Record) -> None:
    """A record that fails when it is told to."""
    calls.append([record.offset])
    goes_on.wait(600)
    raise ValueError(f"{record.offset} cannot be handled")


def each_late(record: Record) -> Send:
    """As `each`; what is not hopeless waits until it is told to go on."""
    if record.offset in hopeless:
        return each(record)
    calls.append([record.offset])
    goes_on.wait(600)
    return Send(value=b"%d" % record.offset)


def refusing(records: Batch) -> None:
    """A batch that is not handled while a hopeless record is among its own."""
    if any(_hopeless_in(records)):
        raise ValueError("one of them cannot be handled")


def giving_up(records: Batch) -> BatchError | None:
    """A batch whose hopeless records are for the dead-letter topic, and all others done."""
    bad = _hopeless_in(records)
    return BatchError(outcomes=[(DeadLetter("a bad row"), bad)]) if any(bad) else None


def giving_up_singly(records: Batch) -> BatchError:
    """Likewise, each of them for a reason of its own."""
    bad = _hopeless_in(records)
    rows = [place for place, is_bad in enumerate(bad) if is_bad]
    return BatchError(outcomes=[(DeadLetter(f"row {row}"), [at == row for at in range(len(bad))]) for row in rows])


def away_at_first(records: Batch) -> BatchError | None:
    """What it needs is away in the first call, which passes over the hopeless records."""
    bad = _hopeless_in(records)
    if len(calls) > 1:
        return None
    return BatchError(outcomes=[(Skip("a bad row"), bad), (OSError("away"), [True] * len(bad))])


def sending_alone(records: Batch) -> BatchError | Send | None:
    """A batch whose hopeless record is to come again while all others are done; alone it is sent to `letters`."""
    bad = _hopeless_in(records)
    if not any(bad):
        return None
    if len(records) == 1:
        return Send("letters", value=b"%d" % records[0].offset)
    return BatchError(done={record.offset for record, is_bad in zip(records, bad, strict=True) if not is_bad})


def _hopeless_in(records: Batch) -> list[bool]:
    calls.append([record.offset for record in records])
    return [record.offset in hopeless for record in records]

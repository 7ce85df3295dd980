"""A seek's plan, for the person who decides. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kunicorn.tables import table

_HEAD = ("partition", "committed", "position", "then", "records", "log start", "log end", "note")


def lines(moves: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """`moves`: as the service answers, see `kunicorn.observe.actions.SeekMove`."""
    yield from table(_HEAD, map(_row, moves))


def _row(move: Mapping[str, Any]) -> tuple[str | int | None, ...]:
    name = f"{move['topic']}-{move['partition']}"
    if move["then"] < 0:
        return (name, move["committed"], move["position"], None, " ", None, None, move["problem"])
    place = (move["committed"], move["position"], move["then"])
    return (name, *place, _effect(move), move["log_start"], move["log_end"], move["problem"] or " ")


def _effect(move: Mapping[str, Any]) -> str:
    """In offsets from where the handler is now; what is committed may be a little older."""
    if move["position"] is None:
        return " "
    count = move["then"] - move["position"]
    return "stays" if not count else f"{abs(count):,} {'skipped' if count > 0 else 'again'}"

"""One replay with a person before it: plan, question, progress, result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.progress import Progress

from kunicorn.dlq.replay import plan, replay
from kunicorn.dlq.selection import Replayed, Selection
from kunicorn.dlq.topic import opened
from kunicorn.errors import ConfigError
from kunicorn.settings import Settings


def run(
    settings: Settings,
    selection: Selection,
    limit: int | None,
    *,
    from_beginning: bool,
    confirm: Callable[[], bool],
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Plan, have it confirmed, send; what was done, for a program. Blocks. Raises `ConfigError`, `NotAllReplayed`."""
    with opened(settings) as topic:
        done = topic.replayed()
        nothing = {number: Replayed() for number in topic.bounds}
        planned = plan(topic, selection, nothing if from_beginning else done, limit)
        say("\n".join(planned.lines()))
        if not planned.chosen:
            return planned.told(0)
        if not confirm():
            raise ConfigError("nothing was sent")
        # On standard error, and only on a terminal: a log of a job wants the result alone.
        with Progress(console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("sending", total=len(planned.chosen))
            delivered = replay(topic, planned, done, lambda: bar.advance(task))
        say(f"sent back and acknowledged: {delivered}")
        return planned.told(delivered)

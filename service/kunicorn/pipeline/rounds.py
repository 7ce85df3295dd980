"""The loop of every job over ranges: a round, its letters, what makes it count, and on to the next.

1. A round counts only once its dead letters are acknowledged; then comes what the job does about it (write a manifest,
   commit offsets), and only then the next.
2. Whatever is killed in between repeats that round and nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kunicorn.pipeline.metrics import Exposed
from kunicorn.pipeline.progress import Bar, Say
from kunicorn.pipeline.ranges import OffsetRange, total
from kunicorn.pipeline.state import RunState
from kunicorn.pipeline.stopping import Stop
from kunicorn.pipeline.tasks import Summary
from kunicorn.pipeline.underway import Tasks, watched
from kunicorn.settings import PipelineSettings


@dataclass(frozen=True, slots=True)
class Steps:
    """What differs from job to job. All block, and raise what ends the job."""

    run: Callable[[Sequence[OffsetRange]], list[Summary]]
    """Has the ranges handled."""
    begun: Callable[[RunState], None]
    """A round is planned: what has to be known after a crash."""
    ended: Callable[[RunState, Sequence[Summary]], None]
    """A round is through: makes it count."""
    size: Callable[[RunState], int]
    """Offsets of the next round."""
    tasks: Callable[[], Tasks]
    """How far the round underway is; called in a thread."""
    pieces: int | None = None
    """Cut a round into so many tasks; None: a partition is one."""


def timed(pipeline: PipelineSettings) -> Callable[[RunState], int]:
    """Rounds that take as long as the settings say."""
    return lambda state: state.next_size(pipeline.round_seconds, pipeline.max_offsets_per_trigger)


def run_rounds(state: RunState, steps: Steps, exposed: Exposed, stop: Stop, say: Say) -> RunState:
    """Round after round until nothing is left or somebody stops it; the state then. Blocks."""
    with exposed, Bar(state, say) as bar:

        def show(tasks: Tasks) -> None:
            exposed.underway(tasks)
            bar.underway(tasks)

        exposed.moved(state.counts, state.rounds, total(state.left))
        while state.left and not stop.asked:
            state = state.begin(steps.size(state), steps.pieces)
            steps.begun(state)
            began = time.monotonic()
            with watched(steps.tasks, show):
                summaries = steps.run(state.underway)
            state = state.end(summaries, time.monotonic() - began)
            steps.ended(state, summaries)
            exposed.moved(state.counts, state.rounds, total(state.left))
            bar.moved(state)
    return state

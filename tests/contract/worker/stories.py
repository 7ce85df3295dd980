"""Stories of a worker, by the thousand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tests.contract.stories import Stories, Tell
from tests.contract.worker import story
from tests.contract.worker.assembled import on_stage
from tests.contract.worker.stepping import Stuck
from tests.contract.worker.supervised import Memory
from tests.contract.worker.truth import Violation


@contextmanager
def _stage() -> Iterator[Tell]:
    with on_stage():
        memory = Memory()

        def tell(seed: int, number: int, trace: list[str] | None = None, noted: Sequence[int] | None = None) -> None:
            story.tell(seed, number, memory, trace, noted)

        yield tell


STORIES = Stories("tests.contract.worker", _stage, verdicts=(Violation, Stuck), simpler_tries=400)
told = STORIES.told

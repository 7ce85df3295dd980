"""Stories that chance tells, by the thousand: which of them does not hold, and the simplest one that fails like it."""

from __future__ import annotations

import argparse
import gc
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import date
from typing import Any, Protocol

import pytest

from tests.contract.worker.choices import simpler


class Tell(Protocol):
    """Tells one story, by its seed and number."""

    def __call__(
        self, seed: int, number: int, trace: list[str] | None = None, noted: Sequence[int] | None = None
    ) -> None:
        """`trace` takes its lines; `noted`: the choices, instead of those of chance. What it raises has those that
        were made as `choices`."""


@dataclass(frozen=True, slots=True)
class Found:
    """A story that did not hold."""

    of: str
    seed: int
    number: int
    error: BaseException
    verdicts: tuple[type[BaseException], ...]

    @property
    def accident(self) -> str:
        """What the code under test broke by, with its traceback; empty where the story says what does not hold."""
        return "" if isinstance(self.error, self.verdicts) else "".join(traceback.format_exception(self.error))

    def __str__(self) -> str:
        return (
            f"story {self.number} of seed {self.seed}: {self.error}\n"
            f"to read it: python -m {self.of} --seed {self.seed} --story {self.number}"
        )


def first_and_more(first: int, end: int) -> list[Any]:
    """Parameters of parts of a seed: the first for each Python, the others for one of them (`once`)."""
    return [first, *(pytest.param(part, marks=pytest.mark.once) for part in range(first + 1, end))]


_SEEDS = 500
"""Of a kind of stories: behind them begins another kind."""


def seeds_of_today(many: int, first: int = 0) -> range:
    """So many seeds of the kind that begins with the first one, each day others: on the same code the same stories find
    nothing new. A failure names its seed."""
    today = first + date.today().toordinal() % (_SEEDS // many) * many
    return range(today, today + many)


@dataclass(frozen=True, slots=True)
class Stories:
    """Of one kind."""

    of: str
    """The package that is run to read one."""
    stage: Callable[[], AbstractContextManager[Tell]]
    """Where they are told, any number of them."""
    verdicts: tuple[type[BaseException], ...]
    """What they raise where something does not hold; by all else the code under test has broken."""
    simpler_tries: int

    def told(self, seed: int, numbers: Iterable[int]) -> Found | None:
        """Tell these; the first that does not hold, None where all do."""
        with self.stage() as tell, collected_between() as collect:
            for number in numbers:
                if number % COLLECTED_EVERY == 0:
                    collect()
                try:
                    tell(seed, number)
                except Exception as error:
                    return Found(self.of, seed, number, error, self.verdicts)
        return None

    def read(self, seed: int, number: int, *, simplest: bool = True) -> list[str]:
        """A story line by line, with what was wrong at its end; where something was, the simplest that is found like
        it."""
        with self.stage() as tell:

            def failing(noted: Sequence[int] | None, trace: list[str] | None = None) -> BaseException | None:
                try:
                    tell(seed, number, trace, noted)
                except Exception as error:
                    return error
                return None

            noted = None
            if simplest and (error := failing(None)) is not None:
                kind = _kind(error)
                noted = simpler(
                    error.choices,  # type: ignore[attr-defined]
                    lambda each: (other := failing(each)) is not None and _kind(other) == kind,
                    self.simpler_tries,
                )
            lines: list[str] = []
            error = failing(noted, lines)
            return [*lines, "it holds" if error is None else f"{type(error).__name__}: {error}"]

    def traces(self, seed: int, numbers: Iterable[int]) -> Sequence[list[str]]:
        """Stories that hold, line by line."""
        traces: list[list[str]] = []
        with self.stage() as tell:
            for number in numbers:
                traces.append([])
                tell(seed, number, traces[-1])
        return traces

    def printed(self, seed: int, number: int) -> list[str]:
        """The lines of one that holds as another process prints them, in which sets have another order."""
        command = [sys.executable, "-m", self.of, "--seed", str(seed), "--story", str(number), "--whole"]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": "0"}
        printed = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
        return printed.splitlines()[:-1]

    def main(self, about: str | None, stories: int) -> int:
        """What `python -m` does with its arguments; the exit status: 1 where something did not hold."""
        parser = argparse.ArgumentParser(prog=f"python -m {self.of}", description=about)
        parser.add_argument("--seed", type=int, required=True)
        parser.add_argument(
            "--story", type=int, help="print this one; where it fails, the simplest one that fails like it"
        )
        parser.add_argument("--whole", action="store_true", help="print it as it is, not a simpler one")
        parser.add_argument("--stories", type=int, default=stories, help="tell so many")
        asked = parser.parse_args()
        if asked.story is not None:
            lines = self.read(asked.seed, asked.story, simplest=not asked.whole)
            print("\n".join(lines))
            return int(lines[-1] != "it holds")
        found = self.told(asked.seed, range(asked.stories))
        print(found or f"{asked.stories} stories of seed {asked.seed} hold")
        return int(found is not None)


COLLECTED_EVERY = 20


@contextmanager
def collected_between() -> Iterator[Callable[[], object]]:
    """No garbage is collected but where this is called.

    Workers that are killed leave coroutines that were never awaited. Python says so when it collects them, and fails to
    where it happens to be inside a named tuple's constructor, which has no `__import__`.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield gc.collect
    finally:
        gc.collect()
        if enabled:
            gc.enable()


def _kind(error: BaseException) -> str:
    return "".join(each for each in str(error) if not each.isdigit())[:40]

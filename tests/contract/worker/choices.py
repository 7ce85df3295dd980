"""What a story leaves to chance: drawn from a seed, noted, and drawn again as noted. Pure.

Zero is always the dull answer, so that a list of noted choices becomes a simpler story where its numbers become smaller
or fewer; behind its end everything is zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import TypeVar

T = TypeVar("T")

_NEVER = 1 << 60


class Choices:
    """Those of one story."""

    def __init__(self, seed: str, noted: Sequence[int] | None = None) -> None:
        """`noted`: not chance, but what was drawn before."""
        self.made: list[int] = []
        self._noted = noted
        self._random = Random(seed).random

    def below(self, number: int) -> int:
        """One of 0 … number-1."""
        if number <= 1:
            return 0
        if self._noted is None:
            value = int(self._random() * number)
        else:
            at = len(self.made)
            value = min(self._noted[at], number - 1) if at < len(self._noted) else 0
        self.made.append(value)
        return value

    def chance(self, percent: int) -> bool:
        """True in so many of a hundred cases."""
        return self.below(100) >= 100 - percent

    def pick(self, options: Sequence[T]) -> T:
        """One of these, the first one being the dullest."""
        return options[self.below(len(options))]

    def stride(self, mean: int) -> int:
        """How many chances pass until the next one is taken; 0: none ever is."""
        return self.below(2 * mean) + 1 if mean else _NEVER


def simpler(noted: Sequence[int], fails: Callable[[Sequence[int]], bool], most_tries: int) -> Sequence[int]:
    """The choices of a simpler story that fails as well, after at most so many tries."""
    best, tries = list(noted), 0
    improved = True
    while improved and tries < most_tries:
        improved = False
        for candidate in _candidates(best):
            tries += 1
            if tries > most_tries:
                break
            if fails(candidate):
                best, improved = candidate, True
                break
    return best


def _candidates(noted: list[int]) -> Iterator[list[int]]:
    size = len(noted)
    length = size // 2
    while length:
        for start in range(0, size, length):
            if any(part := noted[start : start + length]):
                yield noted[:start] + [0] * len(part) + noted[start + length :]
            yield noted[:start] + noted[start + length :]
        length //= 2
    for at, value in enumerate(noted):
        if value > 1:
            yield [*noted[:at], value // 2, *noted[at + 1 :]]

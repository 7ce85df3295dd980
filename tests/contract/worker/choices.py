"""What a story leaves to chance: drawn from a seed, noted, and drawn again as noted; or drawn by hypothesis. Pure.

Zero is always the dull answer, so that a list of noted choices becomes a simpler story where its numbers become smaller
or fewer; behind its end everything is zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from random import Random
from typing import TypeVar

T = TypeVar("T")
Draw = Callable[[int], int]
"""One of 0 … n-1."""

_NEVER = 1 << 60
_DRAW_BYTES = 2


def by_seed(seed: str, noted: Iterable[int] | None = None) -> Draw:
    """By chance, the same numbers for the same seed; or as they were drawn before."""
    if noted is not None:
        numbers = iter(noted)
        return lambda number: min(next(numbers, 0), number - 1)
    random = Random(seed).random
    return lambda number: int(random() * number)


def from_bytes(drawn: bytes) -> Draw:
    """Two bytes a number, which hypothesis has drawn: where it makes them smaller, the story becomes simpler."""
    left = memoryview(drawn)

    def draw(number: int) -> int:
        nonlocal left
        value = int.from_bytes(left[:_DRAW_BYTES], "big") * number >> 8 * _DRAW_BYTES
        left = left[_DRAW_BYTES:]
        return value

    return draw


class Choices:
    """Those of one story."""

    def __init__(self, draw: Draw) -> None:
        self.made: list[int] = []
        self._draw = draw

    def below(self, number: int) -> int:
        """One of 0 … number-1."""
        if number <= 1:
            return 0
        value = self._draw(number)
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

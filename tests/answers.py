"""What commands tell programs, for tests that hold the pages to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping


def names_in(told: object) -> Iterator[str]:
    """Names of an object of JSON and of those within its lists. What is by topic, partition or setting is none of ours:
    a table within an object has names that are data."""
    objects = told if isinstance(told, list) else [told]
    for each in objects:
        if isinstance(each, Mapping):
            for name, value in each.items():
                yield name
                if isinstance(value, list):
                    yield from names_in(value)

"""What is left out of the stories, as the worker does not do it right yet."""

from __future__ import annotations

from collections.abc import Mapping

KNOWN: Mapping[str, str] = {
    "a position outlives its assignment": "the consumed offset never follows the client over what lies behind the last "
    "record, where that position is the one that was told right before the partition was assigned again",
    "a refused record is compacted away": "the record behind it is given up in its place, and never handled",
}
"""Each by its name in `plan`, with what happens. What is mended leaves this list; empty is how it should be."""

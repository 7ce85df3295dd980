"""What tests download, and what they make once, before the first of them runs: `python -m tests.cache`.

A test has ten minutes, which a slow network would take. What cannot be had here is only said: the tests that need it
say so, too, and fail.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests import postgres
from tests.deploy.actionlint import actionlint
from tests.kafka.artifacts import distribution, tools_version
from tests.kafka.cluster import VERSION, make_archive
from tests.system import earlier

OLDER = "3.9.1"
"""Brokers before Kafka 4, in the tests of each push."""


def kafka(version: str) -> None:
    """Its brokers, its command-line tools, and what makes brokers start quickly."""
    distribution(tools_version(version))
    make_archive(distribution(version))


def members_of_then() -> None:
    """The environment of an earlier commit's members."""
    with tempfile.TemporaryDirectory() as place:
        earlier.of_then(Path(place))


def main() -> None:
    """Fetch all that is not there yet. Blocks for minutes on a fresh machine."""
    steps: dict[str, Callable[[], object]] = {
        f"Kafka {VERSION}": partial(kafka, VERSION),
        f"Kafka {OLDER}": partial(kafka, OLDER),
        "PostgreSQL": postgres.programs,
        "members of an earlier commit": members_of_then,
        "actionlint": actionlint,
    }
    for what, step in steps.items():
        try:
            step()
        except Exception as error:  # Whatever it is: a machine without a network runs all other tests.
            print(f"cache for tests: {what}: {error}", file=sys.stderr)


if __name__ == "__main__":
    main()

"""Starts that cannot work, in each of the ways that once could hang: `python -m tests.system.service.fatal_starts`.

Each is to end by itself, with the documented exit code, its reason as the first error of the log, and nothing left
running. How often one hangs depends on the instant at which the error comes: so there are many starts.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AclBinding, AclOperation, AclPermissionType, ResourcePatternType, ResourceType

from kunicorn.errors import ExitCode
from tests.kafka import KafkaCluster
from tests.system import procfs
from tests.system.members import MemberProcess, group_settings, merged
from tests.waiting import wait_until

TOPIC, CLOSED = "orders", "closed"
PATIENCE = 90.0
"""Seconds until a start counts as hanging; a machine that is busy with others takes its time."""
SOON = 10.0
"""Seconds that a start may take where `main` judges, on a machine that has nothing else to do."""

MODULES = {
    "raises.py": "class Handler:\n    def setup(self, options):\n        raise RuntimeError('no database')\n"
    "    def handle(self, record): ...\n",
    "yields.py": "async def handle(record):\n    yield\n",
    "plain.py": "def handle(record): ...\n",
    "dies.py": "import os\nos._exit(9)\n",
}


@dataclass(frozen=True)
class Way:
    """One way to fail: the handler, further settings, and what is to be said with which exit code."""

    entrypoint: str
    code: ExitCode
    says: str
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


REFUSED = "the group refuses"
WAYS = {
    "setup raises": Way("raises:Handler", ExitCode.HANDLER, "no database"),
    "the handler is a generator": Way("yields:handle", ExitCode.HANDLER, "contains 'yield'"),
    "options without a setup": Way(
        "plain:handle", ExitCode.HANDLER, "has no setup", {"handler": {"options": {"dsn": "x"}}}
    ),
    "the template dies": Way("dies:handle", ExitCode.HANDLER, "ends the process (exit 9)"),
    REFUSED: Way("plain:handle", ExitCode.FATAL_GROUP, "GROUP_AUTHORIZATION_FAILED", {"group": {"id": CLOSED}}),
}


@dataclass(frozen=True)
class Ended:
    """How one start ended; `wrong` is empty where it ended as it should."""

    seconds: float
    wrong: str


@contextmanager
def broker() -> Iterator[KafkaCluster]:
    """With a topic for all, and a group that nobody here may join."""
    rules = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
    }
    with KafkaCluster(overrides=rules) as cluster:
        cluster.create_topic(TOPIC, 4)
        group = (ResourceType.GROUP, CLOSED, ResourcePatternType.LITERAL)
        rule = AclBinding(*group, "User:alice", "*", AclOperation.READ, AclPermissionType.ALLOW)
        for done in cluster.admin().create_acls([rule]).values():
            done.result(60)
        yield cluster


def starts(way: Way, bootstrap: str, directory: Path, runs: int, at_once: int, *, topic: str = TOPIC) -> list[Ended]:
    """Start the service so many times, each in a group of its own, and wait for each to end."""
    for name, source in MODULES.items():
        (directory / name).write_text(source)
    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(lambda _: _start(way, bootstrap, topic, directory), range(runs)))


def _start(way: Way, bootstrap: str, topic: str, directory: Path) -> Ended:
    name = f"start-{uuid.uuid4()}"
    usual = group_settings(bootstrap, [topic], name, way.entrypoint, workers=1)
    began = time.monotonic()
    member = MemberProcess(name, directory, merged(usual, {"http": {"port": 0}}, way.settings))
    try:
        code = member.exit_code(PATIENCE)
        return Ended(time.monotonic() - began, _wrong(way, code, member))
    except AssertionError as error:
        return Ended(PATIENCE, str(error))
    finally:
        member.close()


def _wrong(way: Way, code: int, member: MemberProcess) -> str:
    lines = member.output().splitlines()
    errors = [line for line in lines if " ERROR " in line]
    left = ""
    try:
        # The template reads the end of its socket when the supervisor is gone, and exits then.
        wait_until(lambda: not procfs.living_in_session(member.pid), "nothing to be left running")
    except AssertionError:
        left = f"left behind: {procfs.living_in_session(member.pid)}"
    problems = [
        f"exit code {code} in place of {way.code:d}" if code != way.code else "",
        "no error was logged" if not errors else "",
        f"the first error is not the reason: {errors[0]}" if errors and way.says not in errors[0] else "",
        f"{len(errors)} errors" if len(errors) > 1 else "",
        left,
        "a line that is no log line" if any(not line[:4].isdigit() for line in lines if line[:1] != " ") else "",
    ]
    found = "; ".join(filter(None, problems))
    return f"{found}\n{member.output()}" if found else ""


def main(arguments: Sequence[str]) -> int:
    """Run all ways, and say how many starts of each ended as they should."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=200, help="starts of each way")
    parser.add_argument("--at-once", type=int, default=4, help="how many run side by side")
    given = parser.parse_args(arguments)
    bad = 0
    with broker() as cluster, tempfile.TemporaryDirectory() as directory:
        for what, way in WAYS.items():
            ended = starts(way, cluster.bootstrap, Path(directory), given.runs, given.at_once)
            wrong = [each.wrong for each in ended if each.wrong]
            late = sum(each.seconds > SOON for each in ended)
            bad += len(wrong) + late
            times = sorted(each.seconds for each in ended)
            print(
                f"{what}: {len(ended) - len(wrong)} of {len(ended)} as they should; "
                f"median {times[len(times) // 2]:.1f} s, longest {times[-1]:.1f} s, {late} later than {SOON:.0f} s",
                flush=True,
            )
            for each in wrong[:3]:
                print(each, flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

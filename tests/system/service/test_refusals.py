"""What cannot work is refused at once: a message that names the cause and the remedy, an exit code, no traceback."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import AclBinding, AclOperation, AclPermissionType, ResourcePatternType, ResourceType

from kunicorn.errors import ExitCode
from tests.kafka import KafkaCluster
from tests.lengths import rest_long
from tests.system.members import group_settings, merged, toml
from tests.waiting import wait_until

ROOT = Path(__file__).parents[3]
GOOD = "tests.system.handlers.audited:handle"
NOBODY = "127.0.0.1:1"
WITHIN = 240.0


@dataclass(frozen=True)
class Said:
    """What a command left behind."""

    code: int
    text: str


def kunicorn(
    command: str, config: str, directory: Path, env: Mapping[str, str] | None = None, arguments: Sequence[str] = ()
) -> Said:
    """Run the command with this configuration to its end, which must come by itself."""
    path = directory / "config.toml"
    path.write_text(config)
    done = subprocess.run(
        [sys.executable, "-m", "kunicorn", command, "--config", str(path), *arguments],
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'service'}:{ROOT}", **(env or {})},
        cwd=directory,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=WITHIN,
        text=True,
        check=False,
    )
    return Said(done.returncode, done.stdout)


def expect(said: Said, code: ExitCode, *parts: str) -> None:
    """This exit code, each of these parts, and nothing for programmers."""
    assert said.code == code, said.text
    for part in parts:
        assert part in said.text
    assert "Traceback" not in said.text


def config(
    *, bootstrap: str = NOBODY, topic: str = "orders", group_id: str = "g", **sections: Mapping[str, object]
) -> str:
    """A configuration in which only `sections` are unusual."""
    return toml(merged(group_settings(bootstrap, [topic], group_id, GOOD), {"http": {"port": 0}}, sections))


COMMANDS = ("run", "check")


# -- this machine ---------------------------------------------------------------------------------------------------


def test_a_port_in_use_is_refused_by_number(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = kunicorn("run", config(http={"host": "127.0.0.1", "port": port}), tmp_path)
    expect(said, ExitCode.CONFIGURATION, str(port), "another process listens there")


def test_client_properties_that_librdkafka_refuses_are_told(kafka: KafkaCluster, topic: str, tmp_path: Path) -> None:
    kafka.create_topic(topic)
    text = config(bootstrap=kafka.bootstrap, topic=topic) + '[kafka.librdkafka]\n"fetch.wait.max.ms" = "soon"\n'
    expect(kunicorn("run", text, tmp_path), ExitCode.CONFIGURATION, "fetch.wait.max.ms")


# -- the handler ---------------------------------------------------------------------------------------------------

MODULES = {
    "raises.py": "import os\nraise RuntimeError('no database at ' + os.sep)\n",
    "exits.py": "import sys\nsys.exit(5)\n",
    "typo.py": "def handle(record:\n    pass\n",
    "needs.py": "import a_library_that_nobody_has\n",
    "dies.py": "import os\nos._exit(9)\n",
    "fine.py": "def handle(record): ...\ndef two(first, second): ...\nnumber = 7\n",
}
BAD_HANDLERS = {
    "nowhere:handle": ["no module", "nowhere", "PYTHONPATH"],
    "fine:handel": ["fine", "handel", "did you mean 'handle'"],
    "fine:number": ["cannot be called"],
    "fine:two": ["exactly one argument"],
    "raises:handle": ["RuntimeError: no database at /", "raises.py", "line 2"],
    "exits:handle": ["SystemExit", "exits.py"],
    "typo:handle": ["SyntaxError", "typo.py:1"],
    "needs:handle": ["a_library_that_nobody_has", "needs.py"],
    "dies:handle": ["dies:handle", "ended the process"],
}


Cell = tuple[str, str]


def cells(names: str, every: Iterable[Cell], core: Collection[Cell]) -> pytest.MarkDecorator:
    """A command and what is wrong, those beyond the core at length: `tests/system/commands/test_check.py` has `check`
    in its own process, and each text has tests of its own."""
    return pytest.mark.parametrize(names.split(), rest_long(every, core))


@cells(
    "command entrypoint",
    product(COMMANDS, BAD_HANDLERS),
    {("run", "nowhere:handle"), ("run", "dies:handle"), ("check", "nowhere:handle")},
)
def test_a_handler_that_cannot_be_loaded_is_told_with_the_place(tmp_path: Path, command: str, entrypoint: str) -> None:
    for name, source in MODULES.items():
        (tmp_path / name).write_text(source)
    parts = BAD_HANDLERS[entrypoint]
    said = kunicorn(command, config(handler={"entrypoint": entrypoint}), tmp_path)
    if entrypoint == "dies:handle" and command == "run":
        parts = ["dies:handle", "ends the process", "exit 9"]
    expect(said, ExitCode.HANDLER, *parts)


BAD_MIDDLEWARES = {"fine:handel": "did you mean 'handle'", "fine:number": "is int"}


@cells("command middleware", product(COMMANDS, BAD_MIDDLEWARES), {("run", "fine:handel")})
def test_a_middleware_that_cannot_be_loaded_is_told_by_name(tmp_path: Path, command: str, middleware: str) -> None:
    (tmp_path / "fine.py").write_text(MODULES["fine.py"])
    handler = {"entrypoint": "fine:handle", "middlewares": [middleware]}
    said = kunicorn(command, config(handler=handler), tmp_path)
    expect(said, ExitCode.HANDLER, f"handler.middlewares: '{middleware}'", BAD_MIDDLEWARES[middleware])


# -- the cluster ---------------------------------------------------------------------------------------------------


def test_an_unknown_topic_is_refused_by_name(kafka: KafkaCluster, topic: str, tmp_path: Path) -> None:
    said = kunicorn("run", config(bootstrap=kafka.bootstrap, topic=topic), tmp_path)
    expect(said, ExitCode.CONFIGURATION, topic, "create")


@pytest.fixture(scope="module")
def guarded() -> Iterator[KafkaCluster]:
    """A broker with access control, where everybody (`User:ANONYMOUS`) may do what no rule reserves for others."""
    rules = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
    }
    with KafkaCluster(overrides=rules) as cluster:
        cluster.create_topic("open", 2)
        cluster.create_topic("closed", 2)
        cluster.create_topic("shown", 2)
        reserve = [
            rule(ResourceType.TOPIC, "closed", "User:alice", AclOperation.READ),
            rule(ResourceType.GROUP, "closed", "User:alice", AclOperation.READ),
            rule(ResourceType.TOPIC, "shown", "User:ANONYMOUS", AclOperation.DESCRIBE),
            rule(ResourceType.GROUP, "shown", "User:ANONYMOUS", AclOperation.DESCRIBE),
        ]
        for done in cluster.admin().create_acls(reserve).values():
            done.result(60)
        yield cluster


def rule(kind: ResourceType, name: str, who: str, operation: AclOperation) -> AclBinding:
    """`who` may do this with it; all others, nothing."""
    return AclBinding(kind, name, ResourcePatternType.LITERAL, who, "*", operation, AclPermissionType.ALLOW)


@pytest.mark.parametrize("group", ["closed", "shown"])
def test_a_group_that_this_user_may_not_join_ends_the_service(
    guarded: KafkaCluster, tmp_path: Path, group: str
) -> None:
    said = kunicorn("run", config(bootstrap=guarded.bootstrap, topic="open", group_id=group), tmp_path)
    expect(said, ExitCode.FATAL_GROUP, f"group '{group}'", "GROUP_AUTHORIZATION_FAILED", "READ")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_topic_that_this_user_may_not_see_is_refused_by_name(
    guarded: KafkaCluster, tmp_path: Path, command: str
) -> None:
    said = kunicorn(command, config(bootstrap=guarded.bootstrap, topic="closed", group_id="open"), tmp_path)
    expect(said, ExitCode.CONFIGURATION, "closed", "TOPIC_AUTHORIZATION_FAILED", "READ")


def test_leave_tells_of_a_group_that_this_user_may_not_see(guarded: KafkaCluster, tmp_path: Path) -> None:
    text = config(bootstrap=guarded.bootstrap, topic="open", group_id="closed")
    said = kunicorn("leave", text, tmp_path, arguments=["--instance", "pod-0", "--yes"])
    expect(said, ExitCode.FATAL_GROUP, "group 'closed'", "GROUP_AUTHORIZATION_FAILED", "DESCRIBE and READ")


def test_leave_tells_of_a_group_from_which_this_user_may_not_remove_anybody(
    guarded: KafkaCluster, tmp_path: Path
) -> None:
    """It may look (DESCRIBE), and so is told what it would do; removing takes READ."""
    member = Consumer({"bootstrap.servers": guarded.bootstrap, "group.id": "left", "group.instance.id": "pod-0"})
    try:
        member.subscribe(["open"])
        wait_until(lambda: member.poll(0.1) or member.assignment(), "the member's partitions")
        rules = [
            rule(ResourceType.GROUP, "left", "User:alice", AclOperation.READ),
            rule(ResourceType.GROUP, "left", "User:ANONYMOUS", AclOperation.DESCRIBE),
        ]
        for done in guarded.admin().create_acls(rules).values():
            done.result(60)
        text = config(bootstrap=guarded.bootstrap, topic="open", group_id="left")
        said = kunicorn("leave", text, tmp_path, arguments=["--instance", "pod-0", "--yes"])
    finally:
        member.close()
    expect(said, ExitCode.FATAL_GROUP, "member     pod-0", "was not removed: GROUP_AUTHORIZATION_FAILED", "READ")

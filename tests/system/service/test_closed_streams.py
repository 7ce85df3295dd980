"""Standard streams that whoever started the service has closed: nothing else gets their numbers."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from tests.kafka.ports import kept_port
from tests.system import procfs
from tests.system.members import Members

GroupMaker = Callable[..., Members]


@pytest.mark.parametrize(
    "closed",
    [
        *(pytest.param((fd,), id=name, marks=pytest.mark.long) for fd, name in enumerate(("input", "output", "error"))),
        pytest.param((0, 1, 2), id="all"),
    ],
)
def test_a_service_that_is_started_with_closed_streams_works_and_writes_its_log_into_nothing_else(
    members_of: GroupMaker, topic: str, closed: tuple[int, ...]
) -> None:
    closing = " ".join(f"{fd}{'<' if fd == 0 else '>'}&-" for fd in closed)
    nobody = f"127.0.0.1:{kept_port()}"
    group = members_of(nobody, topic, entrypoint="tests.system.handlers.audited:handle", workers=1)
    member = group.start(within=("sh", "-c", f'exec "$@" {closing}', "sh"))
    member.wait(lambda: member.status().get("template") == "ready", "the handler to be imported")
    (template,) = procfs.children(member.pid)
    for pid in (member.pid, template.pid):
        assert [fd for fd in closed if os.readlink(f"/proc/{pid}/fd/{fd}") != os.devnull] == []
    assert member.stop() == 0
    assert "Traceback" not in member.output()

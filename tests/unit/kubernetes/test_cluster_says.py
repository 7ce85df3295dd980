"""What scenarios make of what a cluster says."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.kubernetes.network import enforces
from tests.kubernetes.release import not_json


def test_lines_of_a_log_that_are_no_json_object_are_found() -> None:
    assert not_json('{"event": "started"}\n{"event": "joined"}\n') == []
    assert not_json('{"event": "started"}\nTraceback\n\n"text"\n{"event"') == ["Traceback", "", '"text"', '{"event"']


@pytest.mark.parametrize(("daemons", "enforced"), [([], False), (["kube-proxy"], False), (["calico-node"], True)])
def test_a_policy_is_tried_only_where_the_network_enforces_it(daemons: list[str], enforced: bool) -> None:
    cluster = SimpleNamespace(objects=lambda *_: [{"metadata": {"name": name}} for name in daemons])
    assert enforces(cluster) is enforced  # type: ignore[arg-type]

"""`setup`, `flush` and `teardown` in a process that has one task after the other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kunicorn.pipeline.tasks.executor_process import set_up, settings_file
from kunicorn.settings import load

SETTINGS = """
[kafka]
bootstrap_servers = ["localhost:1"]
[group]
id = "g"
topics = ["orders"]
[handler]
entrypoint = "{entrypoint}"
"""

calls: list[str] = []


class Plain:
    def setup(self, worker: Any) -> None:
        calls.append("setup")

    def handle(self, record: Any) -> None:
        pass


class WithFlush(Plain):
    def flush(self) -> None:
        calls.append("flush")

    def teardown(self) -> None:
        calls.append("teardown")


class WithTeardown(Plain):
    def teardown(self) -> None:
        calls.append("teardown")


@pytest.mark.parametrize(
    ("handler", "expected"),
    [
        (Plain, ["setup"]),
        (WithFlush, ["setup", "flush", "flush"]),
        (WithTeardown, ["setup", "teardown", "setup", "teardown"]),
    ],
)
def test_setup_is_called_once_a_process_unless_only_teardown_writes(
    tmp_path: Path, handler: type, expected: list[str]
) -> None:
    calls.clear()
    path = tmp_path / "config.toml"
    path.write_text(SETTINGS.format(entrypoint=f"{__name__}:{handler.__name__}"))
    file = settings_file(path, load(path, {}))
    for _ in range(2):
        with set_up(file) as handlings:
            handlings.of("orders").flush()
    assert calls == expected


def test_a_task_that_fails_leaves_no_handler_behind(tmp_path: Path) -> None:
    calls.clear()
    path = tmp_path / "config.toml"
    path.write_text(SETTINGS.format(entrypoint=f"{__name__}:WithFlush"))
    file = settings_file(path, load(path, {}))
    with pytest.raises(OSError, match="away"), set_up(file):
        raise OSError("away")
    with set_up(file):
        pass
    assert calls == ["setup", "setup"]

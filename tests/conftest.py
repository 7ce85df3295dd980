"""What every test may ask for, and what the whole suite may be asked to run on."""

from __future__ import annotations

import pytest

from tests.kafka.cluster import VERSION
from tests.system import members


def pytest_addoption(parser: pytest.Parser) -> None:
    """The system tests on another protocol or another Kafka; tests that name their own keep it."""
    group = parser.getgroup("kunicorn")
    group.addoption("--group-protocol", choices=["classic", "consumer"], default="classic", help="of groups under test")
    group.addoption("--kafka-version", default=VERSION, help="of the brokers that the system tests share")


def pytest_configure(config: pytest.Config) -> None:
    """Before any test is collected."""
    members.GROUP_PROTOCOL = config.getoption("--group-protocol")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what has a meaning in the classic protocol only; reported as deselected."""
    if config.getoption("--group-protocol") == "classic":
        return
    classic = [item for item in items if item.get_closest_marker("classic")]
    config.hook.pytest_deselected(items=classic)
    items[:] = [item for item in items if not item.get_closest_marker("classic")]

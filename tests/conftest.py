"""What every test may ask for, and what the whole suite may be asked to run on."""

from __future__ import annotations

import gc
import logging
import os
import resource
from collections.abc import Generator, Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.kafka.cluster import VERSION
from tests.system import members

_FIRST_WITH_CONSUMER_PROTOCOL = 4
_DESCRIPTORS = 16_384
"""Both ends of a thousand connections are in one process; many machines allow 1,024 unless they are asked for more."""

# What is slow on a busy machine is not wrong, nor what chance draws in vain: whether a rule holds is all that is asked.
# A change is judged by the same examples wherever it is tried; `make test-long` draws others, by the second profile.
_UNASKED = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
settings.register_profile("rules", deadline=None, suppress_health_check=_UNASKED, derandomize=True)
settings.register_profile("fresh", deadline=None, suppress_health_check=_UNASKED)
settings.load_profile("rules")


def pytest_addoption(parser: pytest.Parser) -> None:
    """The system tests on another protocol or another Kafka; tests that name their own keep it."""
    group = parser.getgroup("kunicorn")
    group.addoption("--group-protocol", choices=["classic", "consumer"], default="classic", help="of groups under test")
    group.addoption("--kafka-version", default=VERSION, help="of the brokers that the system tests share")


def pytest_configure(config: pytest.Config) -> None:
    """Before any test is collected."""
    members.GROUP_PROTOCOL = config.getoption("--group-protocol")
    _ask_this_machine_directly()
    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _DESCRIPTORS if most == resource.RLIM_INFINITY else min(_DESCRIPTORS, most)
    if allowed != resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(allowed, wanted), most))


def _ask_this_machine_directly() -> None:
    """What tests start here is not behind the proxy by which the machine may reach everything else."""
    if any(name.lower() in ("http_proxy", "https_proxy", "all_proxy") for name in os.environ):
        for name in ("no_proxy", "NO_PROXY"):
            os.environ[name] = ",".join(filter(None, ["127.0.0.1", "localhost", os.environ.get(name)]))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is imported and collected stays until the end: no collection of garbage looks at it again. There are
    hundreds: `connect` has one at each eighth connection, stories at each twentieth. Each would go through the heap of
    all tests. Imports leave nothing to collect."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is about another protocol or beyond that Kafka; reported as deselected."""
    beyond = {"classic"} if config.getoption("--group-protocol") == "consumer" else set()
    if int(config.getoption("--kafka-version").partition(".")[0]) < _FIRST_WITH_CONSUMER_PROTOCOL:
        beyond |= {"consumer", "kafka4"}
    left_out = [item for item in items if any(item.get_closest_marker(mark) for mark in beyond)]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


@pytest.fixture(autouse=True)
def _heard() -> Iterator[None]:
    """A command's session with a cluster has the wire's log silent, for its process: here others come after it."""
    yield
    logging.getLogger("kunicorn.wire").setLevel(logging.NOTSET)

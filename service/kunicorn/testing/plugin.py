"""The pytest plugin: the fixture `kunicorn_handler`. Small, as pytest loads it in every run where kunicorn is
installed; the only module of the package that imports pytest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from kunicorn.testing import HandlerTest

INI = "kunicorn_config"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(INI, "The service's TOML file, for handlers tested with kunicorn_handler; from the root directory.")


@pytest.fixture
def kunicorn_handler(pytestconfig: pytest.Config) -> Callable[..., HandlerTest]:
    """Factory of `kunicorn.testing.HandlerTest`, with the settings of `kunicorn_config` in pytest's own
    configuration.
    """
    # Here, not above: the plugin is loaded with every test run of an environment that has kunicorn.
    from kunicorn.testing import HandlerTest

    named: str = pytestconfig.getini(INI)
    usual = pytestconfig.rootpath / named if named else None

    def make(handler: str | Callable[..., Any] | None = None, **more: Any) -> HandlerTest:
        return HandlerTest(handler, **{"config": usual, **more})

    return make

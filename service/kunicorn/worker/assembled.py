"""A worker's parts, put together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kunicorn.handling.handlings import Handlings
from kunicorn.worker.concurrent import ConcurrentRunner
from kunicorn.worker.lifecycle import Lifecycle
from kunicorn.worker.login import Login
from kunicorn.worker.runner import Runner
from kunicorn.worker.sending import Sending
from kunicorn.worker.statistics import ClientStatistics
from kunicorn.worker.table import GrantTable


@dataclass(frozen=True, slots=True)
class Assembled:
    """Nothing is fetched yet when they are made."""

    handlings: Handlings[Any]
    lifecycle: Lifecycle
    fetcher: GrantTable
    runner: Runner | ConcurrentRunner
    login: Login
    statistics: ClientStatistics | None
    sending: Sending | None = None
    """Where what handlers return is sent."""

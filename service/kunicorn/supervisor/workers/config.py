"""What a worker is told first: the settings, as far as they concern it (`configure`, pure but for secrets' files).

`TransactionalIds` has the workers' transactional ids: the same after a restart, and never those of two living members
by chance. An id belongs to a place in the pool, so that a dead worker's successor ends what it left open. While a
worker is replaced in order two processes have its place, and the successor must not fence the one that still drains:
places have two ids, which successors in order take in turns.
"""

from __future__ import annotations

import errno
import hashlib
import socket
from collections.abc import Sequence
from itertools import count

from kunicorn.clients.config import consumer_properties, dead_letter_target, handler_orders, producing_target
from kunicorn.errors import ConfigError
from kunicorn.ipc.messages import Configure, Token
from kunicorn.librdkafka.properties import ahead_bytes
from kunicorn.settings import Settings


def configure(
    settings: Settings,
    worker: int,
    topics: Sequence[str],
    token: Token | None,
    brokers: int,
    transactional_id: str = "",
) -> Configure:
    """The first message of the worker of that number, in a cluster of so many brokers. Raises `ConfigError`."""
    client_id = f"{settings.kafka.client_id}-worker-{worker}"
    return Configure(
        worker=worker,
        group=settings.group.id,
        handlers=handler_orders(settings),
        client={**consumer_properties(settings, client_id, brokers), **_statistics(settings)},
        token=token,
        topics=list(topics),
        ahead_bytes=ahead_bytes(settings.workers.memory_per_worker_mb),
        dead_letters=dead_letter_target(settings, f"{client_id}-dead-letters", settings.dead_letter_topic),
        producing=producing_target(settings, f"{client_id}-producer", transactional_id),
        log_level=settings.log.level,
        log_format=settings.log.format,
    )


def _statistics(settings: Settings) -> dict[str, int]:
    """Only for workers: nobody would read those of a command's client."""
    interval = settings.kafka.statistics_interval_ms
    return {"statistics.interval.ms": interval} if interval else {}


class TransactionalIds:
    """Holds its share of the names for as long as the process lives."""

    def __init__(self, settings: Settings) -> None:
        self._prefix = settings.producing.transactional_id_prefix
        self._group = settings.group.id
        self._name = settings.group.group_instance_id
        self._mark: socket.socket | None = None

    def of(self, place: int, turn: int) -> str:
        """For the worker at that place; `turn` is 0 or 1."""
        if self._prefix is None:
            self._prefix = f"{self._group}-{self._name or self._own_name()}"
        return f"{self._prefix}-{place}-{turn % 2}"

    def close(self) -> None:
        """Another process may have the name from now on."""
        if self._mark is not None:
            self._mark.close()

    def _own_name(self) -> str:
        """The host's name, with a number where several members of the group run on it.

        The first free number is marked by a socket in the abstract namespace: the kernel lets go of it with the process
        however that ends, so a restart finds the number that it had. In a container the name is the pod's.
        """
        host = socket.gethostname()
        for number in count():
            if self._take(f"{host}\0{self._group}\0{number}"):
                return host if number == 0 else f"{host}.{number}"
        raise AssertionError("unreachable")

    def _take(self, what: str) -> bool:
        mark = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            mark.bind(b"\0kunicorn-" + hashlib.sha256(what.encode()).hexdigest().encode())
        except OSError as error:
            mark.close()
            if error.errno == errno.EADDRINUSE:
                return False
            raise ConfigError(
                f"no name of its own can be had for this member ({error}): set producing.transactional_id_prefix"
            ) from error
        self._mark = mark
        return True

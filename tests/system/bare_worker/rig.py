"""Plays the supervisor for one template and its workers: real processes, real pipes, real shared memory."""

from __future__ import annotations

import array
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import IO, Any, TypeVar

import pytest

from kunicorn.allocator import with_library
from kunicorn.handler.config import HandlerConfig
from kunicorn.ipc import clock
from kunicorn.ipc.ledger import Ledger, SlotReading
from kunicorn.ipc.messages import (
    Configure,
    FetcherStart,
    Fork,
    Forked,
    FrameSplitter,
    FromTemplate,
    FromWorker,
    Ping,
    Pong,
    Preload,
    Ready,
    StartFetcher,
    StopFetcher,
    TemplateReady,
    ToWorker,
    WorkerFailed,
    decode,
    encode,
    pack,
)
from kunicorn.librdkafka.properties import Property, client_properties
from kunicorn.positions import NO_EPOCH
from kunicorn.supervisor.workers.process import become_subreaper
from tests.waiting import PATIENCE, wait_until

T = TypeVar("T")
ROOT = Path(__file__).parents[3]
SERVICE = ROOT / "service"
FOREVER_NS = 1 << 62
MODULE = "handlers_under_test"
"""What every test calls the module of its handlers."""


class TemplateProcess:
    """A template, as the supervisor would start it."""

    def __init__(
        self,
        entrypoint: str,
        directory: Path,
        allocator: str = "",
        traces: Path | None = None,
        stderr: int | IO[bytes] = subprocess.PIPE,
    ) -> None:
        """Handlers are imported from the `directory`, and `noting` leaves what they note in `traces`: in the same one,
        where nothing is said."""
        become_subreaper()
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        paths = [str(SERVICE), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        own = {"PYTHONPATH": os.pathsep.join(paths), "KUNICORN_TEST_TRACES": str(traces or directory)}
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "kunicorn.worker.template", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stderr=None if os.environ.get("RIG_STDERR") else stderr,
                cwd=directory,
                env=with_library({**os.environ, **own}, allocator),
                process_group=0,
            )
        self.socket.settimeout(60)
        self.tell(encode(Preload([entrypoint], [str(SERVICE)], os.getpid(), "info", "text", allocator)))

    def tell(self, packet: bytes, *fds: int) -> None:
        """Send one packet, well-formed or not."""
        self.socket.sendmsg([packet], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else [])

    def hear(self) -> tuple[FromTemplate, list[int]]:
        """The next answer and its descriptors."""
        body, fds, _, _ = socket.recv_fds(self.socket, 1 << 20, 4)
        answer: FromTemplate = decode(body, FromTemplate)
        return answer, list(fds)

    def ready(self) -> TemplateReady:
        """Wait for the import."""
        answer, _ = self.hear()
        assert isinstance(answer, TemplateReady), answer
        return answer

    def fork(self) -> WorkerProcess:
        """A worker that has not heard anything yet."""
        ours, theirs = socket.socketpair()
        ledger = Ledger.create(4096)
        with theirs:
            self.tell(encode(Fork(0)), theirs.fileno(), ledger.fd)
        answer, fds = self.hear()
        assert isinstance(answer, Forked), answer
        return WorkerProcess(answer.pid, fds[0], ours, ledger)

    def close(self) -> None:
        """EOF ends it."""
        self.socket.close()
        self.process.wait(60)
        if self.process.stderr is not None:
            self.process.stderr.close()


class WorkerProcess:
    """The supervisor's end of one worker."""

    def __init__(self, pid: int, pidfd: int, sock: socket.socket, ledger: Ledger) -> None:
        self.pid = pid
        self.pidfd = pidfd
        self.ledger = ledger
        self.heard: list[FromWorker] = []
        """Everything but Pongs that was said so far."""
        self.pongs: list[Pong] = []
        self._socket = sock
        self._splitter = FrameSplitter(FromWorker)
        self._status: int | None = None
        self._pings = count(1)

    def tell(self, message: ToWorker) -> None:
        """Send one message."""
        self.tell_bytes(pack(message))

    def tell_bytes(self, data: bytes) -> None:
        """Send what may not be a message."""
        # What thousands of partitions take does not fit into the pipe at once.
        self._socket.settimeout(60)
        self._socket.sendall(data)

    def expect(self, kind: type[T], within: float = PATIENCE) -> T:
        """Wait for the next message of that kind and take it; others stay in `heard`."""
        return wait_until(lambda: self._take(kind), f"{kind.__name__} from worker {self.pid}", within, 0.0)

    def _take(self, kind: type[T]) -> T | None:
        self.listen(0.02)
        place: list[Any] = self.pongs if kind is Pong else self.heard
        for message in place:
            if isinstance(message, kind):
                place.remove(message)
                return message
        return None

    def listen(self, timeout: float) -> None:
        """Read what has arrived, or arrives within the timeout."""
        self._socket.settimeout(timeout or 0.000_001)
        try:
            data = self._socket.recv(1 << 18)
        except (TimeoutError, BlockingIOError, ConnectionResetError):
            return
        for message in self._splitter.feed(data):
            (self.pongs if isinstance(message, Pong) else self.heard).append(message)

    def handled(self, grant: int, end: int) -> None:
        """Until the call that has consumed the last record before `end` is over, and counted."""
        self.consumed(grant, end)
        wait_until(lambda: not self.slot(grant).hand_count, f"grant {grant} to have nothing in hand")

    def ping(self) -> Pong:
        """Ask, and wait for this very answer."""
        sequence = next(self._pings)
        self.tell(Ping(sequence))
        while True:
            pong = self.expect(Pong)
            if pong.sequence == sequence:
                return pong

    def configure(self, configure: Configure) -> WorkerProcess:
        """Send Configure, wait for Ready, and grant an endless lease."""
        self.tell(configure)
        wait_until(lambda: self._take(Ready) or self._refused(), "Ready", 120, 0.0)
        self.ledger.lease_ns = FOREVER_NS
        return self

    def _refused(self) -> bool:
        for message in self.heard:
            assert not isinstance(message, WorkerFailed), message.error
        return False

    def start(self, topic: str, partitions: dict[int, int], grant: int = 1, slot: int | None = None) -> None:
        """Start fetchers from the given offsets, with grants (and slots) numbered from `grant` on."""
        numbers = range(grant, grant + len(partitions))
        self.tell(
            StartFetcher(
                [
                    FetcherStart(number, number if slot is None else slot, topic, partition, offset, NO_EPOCH)
                    for number, (partition, offset) in zip(numbers, partitions.items(), strict=True)
                ]
            )
        )

    def stop(self, *grants: int, lost: bool = False) -> None:
        """Revoke."""
        self.tell(StopFetcher(list(grants), clock.now() + 60, lost))

    def slot(self, grant: int, slot: int | None = None) -> SlotReading:
        """What the ledger says."""
        return self.ledger.read(grant if slot is None else slot, grant)

    def consumed(self, grant: int, offset: int, within: float = PATIENCE) -> None:
        """Wait until everything before `offset` is handled."""
        wait_until(lambda: self.slot(grant).consumed.offset >= offset, f"{offset} consumed under {grant}", within)

    def signal(self, number: signal.Signals) -> None:
        """Signal it."""
        signal.pidfd_send_signal(self.pidfd, number)

    def hang_up(self) -> None:
        """Close our end of the pipe."""
        self._socket.close()

    def exit_status(self, within: float = PATIENCE) -> int:
        """Wait for its death: the exit code, or minus the signal that killed it."""
        if self._status is None:
            info = wait_until(
                lambda: os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED | os.WNOHANG), f"worker {self.pid} to die", within
            )
            self._status = info.si_status if info.si_code == os.CLD_EXITED else -info.si_status
        return self._status

    def kill(self) -> None:
        """SIGKILL; its ledger is final when this returns."""
        if self._status is None:
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
            self.exit_status()

    def close(self) -> None:
        """Kill it if it lives, and let everything go."""
        self.kill()
        os.close(self.pidfd)
        self._socket.close()
        self.ledger.close()


_RULES: dict[str, Any] = {
    "mode": "record",
    "options": {},
    "batch_max_records": 100,
    "max_attempts": 3,
    "retry_backoff_ms": 20,
    "retry_backoff_max_ms": 100,
}


def client_of(bootstrap: str, group: str, rack: str | None = None) -> dict[str, Property]:
    """Properties of a worker's client."""
    return client_properties(
        bootstrap_servers=bootstrap.split(","),
        client_id=group,
        group_id=group,
        isolation_level="read_committed",
        client_rack=rack,
        security={},
        extra={},
        memory_per_worker_mb=128,
        brokers=1,
    )


def configuration(bootstrap: str, entrypoint: str, topics: list[str], **overrides: Any) -> Configure:
    """A worker's Configure with quick retries; `overrides` are fields of it, or of its only handler."""
    order: dict[str, Any] = {"entrypoint": entrypoint, **_RULES}
    order |= {
        name: overrides.pop(name) for name in HandlerConfig.__struct_fields__ if name in overrides.keys() - {"topics"}
    }
    fields: dict[str, Any] = {
        "worker": 0,
        "group": "rig",
        "handlers": [HandlerConfig(**order)],
        "client": client_of(bootstrap, "rig"),
        "topics": topics,
        "log_level": "info",
        "log_format": "text",
    }
    return Configure(**{**fields, **overrides})


def handler_of(entrypoint: str, *topics: str, **fields: Any) -> HandlerConfig:
    """One of several handlers, without retries where `fields` say nothing else."""
    own = {"entrypoint": f"{MODULE}:{entrypoint}", "topics": list(topics), "max_attempts": 1}
    return HandlerConfig(**{**_RULES, **own, **fields})


OVER_BOTH_FETCHERS = pytest.mark.parametrize("processes", ["librdkafka", "own"], indirect=True)
"""For tests of what holds whoever fetches: of what is done with rows of the one and messages of the other."""
OWN_AT_LENGTH = pytest.mark.parametrize(
    "processes", ["librdkafka", pytest.param("own", marks=pytest.mark.long)], indirect=True
)
"""For tests of what comes behind that, which `tests/contract/worker` holds over both in every way of calling."""


class Templates:
    """The templates of a module's tests, one for each source of handlers: a service, too, has all its workers from one.
    Nothing that a worker changes is in the next."""

    def __init__(self, stack: ExitStack, directory: Path) -> None:
        self._stack, self._directory = stack, directory
        self._of: dict[str, TemplateProcess] = {}

    def serve(self, test: Path) -> None:
        """From now on handlers leave their traces in this test's directory."""
        self._now.unlink(missing_ok=True)
        self._now.symlink_to(test)

    def of(self, source: str, handler: str) -> TemplateProcess:
        """The one that has imported this source, in which there is such a handler."""
        if source not in self._of:
            directory = self._directory / str(len(self._of))
            directory.mkdir(exist_ok=True)
            _write(directory, source)
            # A pipe that nobody reads would fill up with tracebacks, and workers of later tests wait for ever.
            with (directory / "stderr").open("ab") as stderr:
                template = TemplateProcess(f"{MODULE}:{handler}", directory, traces=self._now, stderr=stderr)
            self._stack.callback(template.close)
            template.ready()
            self._of[source] = template
        return self._of[source]

    @property
    def _now(self) -> Path:
        return self._directory / "now"


class Rig:
    """Starts workers, and templates of its own, for one test and ends them with it."""

    def __init__(self, stack: ExitStack, templates: Templates, directory: Path, fetcher: str = "librdkafka") -> None:
        """`fetcher`: of its workers, where a test asks for no other."""
        self.directory = directory
        self._stack, self._templates, self._fetcher = stack, templates, fetcher

    def module(self, source: str) -> None:
        """Write the handlers' module."""
        _write(self.directory, source)

    def template(self, handler: str, allocator: str = "") -> TemplateProcess:
        """Start a template for `handlers_under_test:<handler>` that is this test's own; does not wait."""
        template = TemplateProcess(f"{MODULE}:{handler}", self.directory, allocator)
        self._stack.callback(template.close)
        return template

    def fork(self, template: TemplateProcess) -> WorkerProcess:
        """Fork a worker from it."""
        worker = template.fork()
        self._stack.callback(worker.close)
        return worker

    def unconfigured(self, handler: str) -> WorkerProcess:
        """A worker that has not heard anything yet."""
        return self.fork(self._templates.of((self.directory / f"{MODULE}.py").read_text(), handler))

    def worker(self, handler: str, bootstrap: str, topics: list[str], **overrides: Any) -> WorkerProcess:
        """A worker that is ready for partitions."""
        given = {"fetcher": self._fetcher, **overrides}
        return self.unconfigured(handler).configure(configuration(bootstrap, f"{MODULE}:{handler}", topics, **given))


def _write(directory: Path, source: str) -> None:
    (directory / f"{MODULE}.py").write_text(source)


@contextmanager
def shared_templates(directory: Path) -> Iterator[Templates]:
    """Templates for a module's tests; they end with the block."""
    with ExitStack() as stack:
        yield Templates(stack, directory)


@contextmanager
def rig(templates: Templates, directory: Path, fetcher: str = "librdkafka") -> Iterator[Rig]:
    """A rig whose processes are gone when the block ends; handlers leave their traces in the directory."""
    templates.serve(directory)
    with ExitStack() as stack:
        yield Rig(stack, templates, directory, fetcher)

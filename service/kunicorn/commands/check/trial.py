"""Findings of `kunicorn check` about the handler: whether it loads, and what it makes of the latest records (`--try`).

The user's code runs in a child process, which can neither hang the check nor take it along. Nothing is committed; what
the handler itself does is real.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace

import msgspec

from kunicorn.clients.config import consumer_properties, encoding_of, handler_configs
from kunicorn.clients.session import cluster_session
from kunicorn.commands.check.cluster import Finding
from kunicorn.commands.child import die_with_parent
from kunicorn.errors import ConfigError, ExitCode, PeerError, how_it_ended
from kunicorn.handler.config import Encoding, HandlerConfig
from kunicorn.ipc.messages import Token
from kunicorn.linux import memory_file
from kunicorn.observe import logs
from kunicorn.settings import Settings
from kunicorn.settings.security import without_secrets
from kunicorn.text import printable

_LAST_LINES_SECONDS = 1.0
_AT_ONCE = 65_536


@dataclass(frozen=True, slots=True)
class Ended:
    """End of a child: its exit code or signal, and its answer."""

    code: int | None
    """Exit code, negative for a signal; None if it had to be killed for taking too long."""
    said: str

    @property
    def how(self) -> str:
        """The end in words, for people."""
        return "killed: it took too long" if self.code is None else how_it_ended(self.code)


def calling(module: str, function: str) -> str:
    """A program that calls the function, with what can be imported here."""
    return f"import json, sys; sys.path[:] = json.loads(sys.argv[1])\nfrom {module} import {function} as main\nmain()"


def run(
    program: str, log_format: str, told: bytes, timeout: float, printed: Callable[[str], None] | None = None
) -> Ended:
    """Run a Python program in a process group of its own, until it ends or `timeout` seconds are over. Blocks.

    Its arguments are our `sys.path` as JSON, the descriptor that it answers on, and `log_format`; `told` is what it
    reads on standard input (arguments can be read by every user of the machine). `printed` gets each line of its
    output, on a thread, as it comes; without it the output goes nowhere.
    """
    read_end, write_end = os.pipe()
    importable_here = json.dumps(list(dict.fromkeys([os.getcwd(), *sys.path])))
    # In memory: a pipe would fill up where the child does not read.
    with open(memory_file("told"), "wb+") as given:
        given.write(told)
        given.seek(0)
        child = subprocess.Popen(
            [sys.executable, "-c", program, importable_here, str(write_end), log_format],
            pass_fds=[write_end],
            env=without_secrets(os.environ),
            stdin=given,
            stdout=subprocess.DEVNULL if printed is None else subprocess.PIPE,
            stderr=subprocess.DEVNULL if printed is None else subprocess.STDOUT,
            start_new_session=True,
            # Who kills us, such as a job's time limit, does not mean the handler to go on. This thread waits for it.
            preexec_fn=die_with_parent,  # noqa: PLW1509 - one system call, loaded before the fork
        )
    os.close(write_end)
    said = bytearray()

    def read_answer() -> None:
        with open(read_end, "rb", buffering=0) as pipe:
            while some := pipe.read(_AT_ONCE):
                said.extend(some)

    def pass_on() -> None:
        if printed is not None and child.stdout is not None:
            for line in child.stdout:
                # Nobody may read ours any more (`2>&1 | head`). Unread, the child's would fill up, and the child wait.
                with contextlib.suppress(OSError):
                    printed(line.decode(errors="backslashreplace").rstrip("\n"))

    with _beside(read_answer), _beside(pass_on):
        code = _ended(child, timeout)
    return Ended(code, said.decode(errors="replace"))


@contextlib.contextmanager
def _beside(read: Callable[[], None]) -> Iterator[None]:
    """Read what the child writes while it runs: it would block once the pipe is full."""
    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    yield
    # A process that it started and that left its group may hold the other end, for as long as it likes.
    reader.join(_LAST_LINES_SECONDS)


def _ended(child: subprocess.Popen[bytes], timeout: float) -> int | None:
    """The child's exit code, None if it had to be killed; its process group is killed in any case."""
    try:
        return child.wait(timeout)
    except subprocess.TimeoutExpired:
        return None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def log_format(settings: Settings) -> str:
    """Format of the log of a service that writes where we do."""
    return logs.format_of(settings.log.format)


_IMPORT = """
import json, os, sys
sys.path[:] = json.loads(sys.argv[1])
import msgspec
from kunicorn.errors import ServiceError
from kunicorn.handler.call import arguments_of
from kunicorn.handler.retry import find
from kunicorn.handler.load import find as find_handler, handler_of
from kunicorn.handler.outputs import refuse_two_committers
from kunicorn.handler.registry import check_offsets, check_options, concurrency_of
from kunicorn.handler.config import HandlerConfig
from kunicorn.observe import prints
try:
    order = tuple[HandlerConfig, str | None, list[str]]
    config, delivery, exceptions = msgspec.json.decode(sys.stdin.buffer.read(), type=order)
    prints.take_over_as_text(sys.argv[3])
    handler = handler_of(config.entrypoint, find_handler(config.entrypoint, yields=delivery is not None))
    arguments_of(handler, config.mode, config.decoding, config.tracing)
    check_options(config)
    check_offsets(handler, config)
    refuse_two_committers(handler, delivery)
    concurrency_of(handler.is_async, config.mode, config.ordering, config.concurrency)
    for name in exceptions:
        find(name)
except ServiceError as error:
    os.write(int(sys.argv[2]), str(error).encode(errors="backslashreplace"))
    os._exit(int(error.exit_code))
os._exit(0)
"""
"""Run by a Python of its own. Leaves by `_exit`: threads that the handler's module started must not keep it."""


def importable(
    config: HandlerConfig,
    timeout: float,
    *,
    delivery: str | None = None,
    exceptions: Collection[str] = (),
    log_format: str = "text",
) -> Finding:
    """Finding about the import of the handler, of its middlewares, filters and decoders, and of the `exceptions` that
    its rules name, and about the settings that hang on what it is, in a child. Blocks.

    `delivery`: how what it returns is sent; None: not at all. `log_format`: that of the service, by which the standard
    streams are plain ones or not.
    """
    ended = run(_IMPORT, log_format, msgspec.json.encode((config, delivery, list(exceptions))), timeout)
    if ended.code is None:
        return no_handler(
            f"importing {config.entrypoint!r} took more than {timeout:g} s (workers.start_timeout_ms); do slow work "
            f"in setup(), not at import"
        )
    if ended.code == 0:
        return Finding("handler", f"{config.entrypoint} can be imported and called")
    return _refused(ended, f"importing {config.entrypoint!r} ended the process: {ended.how}")


def _refused(ended: Ended, silent: str) -> Finding:
    """Finding about a child that has refused the handler, or the settings, as a worker would, and with its exit code.
    `silent`: the text where it says nothing.
    """
    if ended.code == ExitCode.CONFIGURATION and ended.said:
        return Finding("handler", ended.said, ExitCode.CONFIGURATION)
    return no_handler(ended.said or silent)


def no_handler(text: str) -> Finding:
    """Finding that the handler cannot do its work."""
    return Finding("handler", text, ExitCode.HANDLER)


_TRYING = "kunicorn.commands.check.trying"
_TRIAL_TIMEOUT = 120.0
"""Seconds for fetching and handling together, beyond those for the start."""


class Order(msgspec.Struct, frozen=True):
    """Input of the child that tries the handler. Carries secrets."""

    group: str
    handlers: list[HandlerConfig]
    client: dict[str, str | int | float | bool]
    token: Token | None
    logs: list[tuple[str, int, int, int]]
    """Topic, partition, first offset, and the end, of those that are not empty."""
    records: int
    """Number of records to try: the latest ones of the logs."""
    delivery: str | None = None
    output_topic: str | None = None
    """How what the handler returns would be sent, and where it goes if it names no topic. Nothing is sent here."""
    encoding: Encoding | None = None
    limits_ms: list[int | None] = []
    """Of each handler: after so long the service interrupts a call."""


class Result(msgspec.Struct, frozen=True):
    """Answer of the child that tries the handler."""

    handled: int
    failed: int
    seconds: float
    """Seconds spent in the handler."""
    worst: float
    outcomes: dict[str, int]
    """What the handler said other than that it is done: Skip, DeadLetter, …"""
    filtered: dict[str, int]
    """How many of the handled ones did not come to it, by the filter's name."""
    error: str
    """The first failure, with the user's part of its traceback; empty without one."""
    outputs: int
    """Number of records that would be sent."""
    overdue: int = 0
    """Number of calls that took longer than the service lets them."""


_NO_RECORDS = Finding("trial", "the topics hold no records to try the handler on", warning=True)


def tried(settings: Settings, records: int) -> Finding:
    """Finding about a trial: a child fetches the latest records and handles them. Blocks. What it prints goes to
    standard error, line by line.
    """
    try:
        order = _order(settings, records)
    except (PeerError, ConfigError) as error:
        return Finding("trial", f"the latest records cannot be found: {error}", ExitCode.CONFIGURATION)
    if not order.logs:
        start = set_up(settings)  # The trial would have called it.
        return start if start.failure is not None else _NO_RECORDS
    timeout = settings.workers.start_timeout_ms / 1000 + _TRIAL_TIMEOUT
    ended = run(calling(_TRYING, "main"), log_format(settings), msgspec.json.encode(order), timeout, _show)
    try:
        result = msgspec.json.decode(ended.said, type=Result)
    except msgspec.DecodeError:
        early = f"trying the handler on {records} records ended early: "
        if ended.code is None:
            return no_handler(f"{early}it took more than {timeout:g} s; try fewer records")
        return _refused(replace(ended, said=early + ended.said if ended.said else ""), early + ended.how)
    return found(result)


def set_up(settings: Settings) -> Finding:
    """Finding about `setup` of every handler, called in a child as a worker calls it, and then `teardown`. Blocks."""
    order = _order_of(settings, {"client.id": _client_id(settings)})
    timeout = settings.workers.start_timeout_ms / 1000
    ended = run(calling(_TRYING, "set_up"), log_format(settings), msgspec.json.encode(order), timeout, _show)
    if ended.code is None:
        return no_handler(
            f"setup took more than {timeout:g} s (workers.start_timeout_ms), after which a worker is ended"
        )
    if ended.code == ExitCode.CLEAN:
        return Finding("setup", "setup and teardown return")
    return _refused(ended, f"setup ended the process: {ended.how}")


def _show(line: str) -> None:
    print(f"handler | {printable(line)}", file=sys.stderr, flush=True)


def found(result: Result) -> Finding:
    """Finding that the child's answer makes."""
    total = result.handled + result.failed
    if not total:
        return _NO_RECORDS
    outputs = f", {result.outputs} outputs made and not sent" if result.outputs else ""
    others = outputs + "".join(f", {count} said {name}" for name, count in result.outcomes.items())
    others += "".join(f", {count} filtered by {name}" for name, count in result.filtered.items())
    if result.overdue:
        others += f", {result.overdue} calls took longer than handler_timeout_ms, at which the service interrupts them"
    pace = f"{result.seconds / total * 1000:.1f} ms each, the longest call {result.worst * 1000:.0f} ms"
    if result.failed:
        return Finding(
            "trial", f"{result.failed} of {total} records failed ({pace}){others}: {result.error}", ExitCode.HANDLER
        )
    called = sum(result.filtered.values()) < total
    text = f"{total} records handled, {pace}{others}; nothing is committed"
    return Finding("trial", text, warning=not called or result.overdue > 0)


def limits_ms(settings: Settings) -> list[int | None]:
    """Of each handler: after so long the service interrupts a call."""
    return [each.handler_timeout_ms for each in settings.every_handler]


def _order(settings: Settings, records: int) -> Order:
    with cluster_session(settings) as session:
        # A pattern that matches nothing yet is no failure.
        wanted = settings.assign.wanted
        topics = session.topics(wanted.topics or settings.group.topics)
        partitions = session.partitions(topics, numbered=wanted.numbered) if topics else []
        edges = session.edges(partitions)
        token = session.token
    client = {**consumer_properties(settings, _client_id(settings)), "log_level": 0}
    filled = [(*tp, log.first, log.end) for tp, log in edges.items() if log.end > log.first]
    return msgspec.structs.replace(_order_of(settings, client), token=token, logs=filled, records=records)


def _order_of(settings: Settings, client: Mapping[str, str | int | float | bool]) -> Order:
    """The order to set the handlers up, and to try them on nothing."""
    return Order(
        group=settings.group.id,
        handlers=handler_configs(settings),
        client=dict(client),
        token=None,
        logs=[],
        records=0,
        delivery=settings.producing.delivery,
        output_topic=settings.producing.topic,
        encoding=encoding_of(settings),
        limits_ms=limits_ms(settings),
    )


def _client_id(settings: Settings) -> str:
    return f"{settings.kafka.client_id}-check"

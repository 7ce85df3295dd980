"""The template: a process that has imported the handler and forks workers from it.

    supervisor --(Preload; then Fork and two descriptors, for each worker)--> template --fork--> hop --fork--> worker
    supervisor <--(TemplateReady or TemplateFailed; then Forked and a pidfd, for each worker)

`python -m kunicorn.worker.template FD`, exec'ed by the supervisor with a SOCK_SEQPACKET socket at that descriptor, so
that nothing of the supervisor's event loop, threads and sockets is here. The hop exits at once, and the worker's parent
becomes the supervisor, which has asked for that by PR_SET_CHILD_SUBREAPER; a dead template therefore costs no worker.
The template never talks to Kafka.

Threads and sockets do not survive a fork: a lock held by a thread that is gone stays locked for ever, a client made at
import delivers nothing and raises nothing. So they are counted after the import; if there are any, the process starts
over as a new program without importing the handler, and each worker imports it for itself.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import logging
import os
import signal
import socket
import sys
import time
from typing import NoReturn

import confluent_kafka  # noqa: F401  (inherited by every worker: saves each of them 40 ms)

from kunicorn.allocator import with_library, without_library
from kunicorn.errors import HandlerLoadError
from kunicorn.handler.load import find, find_middleware, keeps_offsets, print_line_by_line
from kunicorn.ipc.messages import (
    Fork,
    Forked,
    ForkFailed,
    FrameError,
    FromTemplate,
    Preload,
    TemplateFailed,
    TemplateReady,
    decode,
    encode,
)
from kunicorn.linux import receive_descriptors
from kunicorn.observe import logs, prints
from kunicorn.worker import main as worker
from kunicorn.worker.linux import die_with, name_process, sockets, stdin_from_nowhere, threads

log = logging.getLogger("kunicorn.template")

_MAX_PACKET = 1 << 20
_DESCRIPTORS = 2


def main(arguments: list[str]) -> int:
    """Serve the socket `arguments[0]`. A second argument says why the handler is not to be imported here; further ones
    are what `TemplateReady` says of it."""
    fd, reason, keepers = int(arguments[0]), "".join(arguments[1:2]), arguments[2:]
    _set_up_process()
    sock = socket.socket(fileno=fd)
    try:
        # Only peeked at: a template that has to start over reads it again.
        preload: Preload = decode(sock.recv(_MAX_PACKET, socket.MSG_PEEK), Preload)
        if not die_with(preload.supervisor):
            return 0
        logs.configure_without_thread(preload.log_level, preload.log_format, "template")
        prints.take_over()
        _import_like(preload)
        _keep_allocator_to_ourselves(preload.allocator)
        answer = TemplateReady(False, reason, 0.0, keepers) if reason else _import_handler(sock, preload)
        sock.recv(_MAX_PACKET)
        if isinstance(answer, TemplateFailed):
            _give_up(sock, answer)
        _send(sock, answer)
        gc.collect()
        gc.freeze()
        _serve(sock, preload.supervisor)
    except FrameError as error:
        log.error("the template ends, as the supervisor sent nonsense: %s", error)
        return 1
    except (BrokenPipeError, ConnectionResetError):
        return 0  # The supervisor ends, or has another template by now.
    except OSError as error:
        log.error("the template ends: %s", error)
        return 1
    return 0


def _set_up_process() -> None:
    """Ignore the signals that reach every process (Ctrl-C, systemd's SIGTERM): only the supervisor's count."""
    if os.getpgid(0) != os.getpid():
        os.setpgid(0, 0)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    # SIGABRT, which ends an import that takes too long: the stacks say where it waits.
    faulthandler.enable(all_threads=True)
    stdin_from_nowhere()
    print_line_by_line()
    name_process("kunicorn-tmpl")


def _import_like(preload: Preload) -> None:
    """Search modules where the supervisor does: one that only it finds would be missing here without a word."""
    sys.path[:] = preload.path + [entry for entry in sys.path if entry not in preload.path]


def _keep_allocator_to_ourselves(library: str) -> None:
    """Take the preloaded allocator out of the environment: it is meant for this process and its forks, not for the
    programs that a handler starts.
    """
    if not library:
        return
    rest = without_library(os.environ, library)
    for name in os.environ.keys() - rest.keys():
        del os.environ[name]
    os.environ.update(rest)


def _import_handler(sock: socket.socket, preload: Preload) -> TemplateReady | TemplateFailed:
    """Import it and look at what that left behind; does not return if the process has to start over."""
    before, had = threads(), sockets()
    directory, environment = os.getcwd(), dict(os.environ)
    began = time.monotonic()
    try:
        # Whether it may yield, workers know.
        found = [(each, find(each, yields=True)) for each in preload.entrypoints]
        for each in preload.middlewares:
            find_middleware(each)
        keepers = [entrypoint for entrypoint, target in found if keeps_offsets(target)]
    except HandlerLoadError as error:
        return TemplateFailed(str(error))
    seconds = time.monotonic() - began
    if left_behind := _left_behind(threads() - before, len(sockets() - had)):
        os.chdir(directory)
        again = with_library(environment, preload.allocator)
        _start_over(sock, f"importing {', '.join(preload.entrypoints)} {left_behind}", keepers, again)
    return TemplateReady(True, "", seconds, keepers)


def _give_up(sock: socket.socket, answer: TemplateFailed) -> NoReturn:
    """Tell it and end, whatever the import has left behind: `sys.exit` would wait for its threads, and each further try
    would be one process more."""
    try:
        _send(sock, answer)
        prints.finish()
    finally:
        os._exit(3)


def _left_behind(new_threads: int, new_sockets: int) -> str:
    found = [f"{count} {what}" for count, what in ((new_threads, "threads"), (new_sockets, "sockets")) if count > 0]
    if not found:
        return ""
    return (
        f"starts {' and '.join(found)}, which do not survive a fork: every worker imports it for itself, "
        f"which makes worker starts slower; start them in the handler's setup(options) instead"
    )


def _start_over(sock: socket.socket, note: str, keepers: list[str], environment: dict[str, str]) -> NoReturn:
    """Become a new program: exec is the only way to be sure that no thread and no lock is left."""
    prints.finish()
    keep = sock.fileno()
    os.set_inheritable(keep, True)
    for fd in map(int, os.listdir("/proc/self/fd")):
        if fd > 2 and fd != keep:
            _close_on_exec(fd)
    arguments = [sys.executable, "-m", "kunicorn.worker.template", str(keep), note, *keepers]
    os.execve(sys.executable, arguments, environment)  # noqa: S606


def _close_on_exec(fd: int) -> None:
    """Set close-on-exec: clients written in C do not always do it for their sockets."""
    with contextlib.suppress(OSError):
        os.set_inheritable(fd, False)


def _serve(sock: socket.socket, supervisor: int) -> None:
    """Fork for every request, until the supervisor closes the socket."""
    while True:
        body, fds, flags = receive_descriptors(sock, _MAX_PACKET, _DESCRIPTORS)
        if not body:
            return
        decode(body, Fork)
        if len(fds) != _DESCRIPTORS or flags & socket.MSG_CTRUNC:
            raise FrameError(f"a Fork with {len(fds)} descriptors in place of {_DESCRIPTORS}")
        try:
            answer, pidfds = _fork(sock, supervisor, *fds)
        except OSError as error:
            # A new template would import the handler again, and find as few processes and as little memory.
            answer, pidfds = encode(_fork_failed(error)), []
        for fd in fds:
            # Else a worker would never read EOF: its siblings, forked later, would hold the supervisor's word open.
            os.close(fd)
        socket.send_fds(sock, [answer], pidfds)
        for fd in pidfds:
            os.close(fd)


def _fork(sock: socket.socket, supervisor: int, channel_fd: int, ledger_fd: int) -> tuple[bytes, list[int]]:
    """Fork the hop, which forks the worker and exits; the answer for the supervisor. Raises OSError where that fails.

    Told only when the hop has gone: a worker that died before would be a child of the hop's, and its exit status lost.
    """
    # What the handler printed at import would otherwise be printed again by every worker.
    prints.finish()
    inner, outer = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with inner, outer:
        hop = os.fork()
        if hop == 0:
            _hop([sock, inner, outer], supervisor, channel_fd, ledger_fd)
        _, status = os.waitpid(hop, 0)
        if status != 0:
            raise OSError(0, f"the process that was to fork the worker has ended by wait status {status}")
        body, fds, _ = receive_descriptors(inner, _MAX_PACKET, 1)
    return body, fds


def _fork_failed(error: OSError) -> ForkFailed:
    return ForkFailed(error.errno or 0, error.strerror or str(error))


def _hop(held: list[socket.socket], supervisor: int, channel_fd: int, ledger_fd: int) -> NoReturn:
    status = 1
    try:
        hop = os.getpid()
        pid = os.fork()
        if pid == 0:
            for sock in held:
                sock.close()
            worker.run(channel_fd, ledger_fd, supervisor, hop)
        # The hop is the worker's parent still, so the pid cannot be anybody else's yet.
        socket.send_fds(held[-1], [encode(Forked(pid))], [os.pidfd_open(pid)])
        status = 0
    except OSError as error:
        socket.send_fds(held[-1], [encode(_fork_failed(error))], [])
        status = 0
    finally:
        os._exit(status)


def _send(sock: socket.socket, message: FromTemplate) -> None:
    sock.send(encode(message))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

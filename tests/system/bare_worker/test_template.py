"""The template: imports once, forks clean workers, and says so where it cannot."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from kunicorn.ipc.messages import Fork, TemplateFailed, encode
from tests.deploy.tools import tools
from tests.kafka import KafkaCluster
from tests.system import procfs
from tests.system.bare_worker.rig import Rig, TemplateProcess, configuration
from tests.system.bare_worker.traffic import HANDLERS, produce, seen
from tests.waiting import wait_until


def failure(template: TemplateProcess) -> str:
    """Why it could not import."""
    answer, _ = template.hear()
    assert isinstance(answer, TemplateFailed), answer
    assert template.process.wait(60) == 3
    return answer.error


def test_a_module_that_raises_is_reported_with_the_users_lines(processes: Rig) -> None:
    processes.module("def load():\n    return {}['region']\n\nload()\n")
    error = failure(processes.template("see"))
    assert "KeyError: 'region'" in error
    assert "handlers_under_test.py:2" in error
    assert "return {}['region']" in error
    assert "importlib" not in error


def test_a_module_that_exits_does_not_take_the_template_along_silently(processes: Rig) -> None:
    processes.module("import sys\nsys.exit('no licence')\n")
    assert "SystemExit: no licence" in failure(processes.template("see"))


IMPORTED_BY = """
import os
IMPORTED_BY = os.getpid()

def see_who_imported(record):
    note(f"by this process: {IMPORTED_BY == os.getpid()}")
"""
DIRTY = {
    "a thread": "import threading, time\nthreading.Thread(target=time.sleep, args=(1000,), daemon=True).start()\n",
    "a socket": "import socket\nleft_open = socket.socketpair()\n",
    "a client": "import confluent_kafka\nproducer = confluent_kafka.Producer({'bootstrap.servers': '127.0.0.1:9'})\n",
}


A_CLIENT = pytest.param("a client", marks=pytest.mark.long)
"""It has threads and sockets, as those two have one each."""


@pytest.mark.parametrize("what", ["a thread", "a socket", A_CLIENT])
def test_a_handler_that_cannot_be_forked_is_imported_by_each_worker(
    processes: Rig, kafka: KafkaCluster, topic: str, what: str
) -> None:
    processes.module(DIRTY[what] + HANDLERS + IMPORTED_BY)
    template = processes.template("see_who_imported")
    answer = template.ready()
    assert not answer.preloaded
    assert "do not survive a fork" in answer.note
    assert len(os.listdir(f"/proc/{template.process.pid}/task")) == 1
    assert noted_by_a_worker_of(template, "see_who_imported", processes, kafka, topic) == ["by this process: True"]


def test_a_handler_that_leaves_nothing_behind_is_imported_by_the_template_alone(
    processes: Rig, kafka: KafkaCluster, topic: str
) -> None:
    processes.module(HANDLERS + IMPORTED_BY)
    template = processes.template("see_who_imported")
    assert template.ready().preloaded
    assert noted_by_a_worker_of(template, "see_who_imported", processes, kafka, topic) == ["by this process: False"]


def noted_by_a_worker_of(
    template: TemplateProcess, handler: str, processes: Rig, kafka: KafkaCluster, topic: str
) -> list[str]:
    """What the handler notes of one record."""
    kafka.create_topic(topic, 1)
    produce(kafka.bootstrap, topic, ["v"])
    configure = configuration(kafka.bootstrap, f"handlers_under_test:{handler}", [topic])
    worker = processes.fork(template).configure(configure)
    worker.start(topic, {0: 0})
    worker.consumed(1, 1)
    return seen(processes.directory)


@pytest.mark.parametrize(
    "left_behind", ["nothing", "a thread", pytest.param("a socket", marks=pytest.mark.long), A_CLIENT]
)
def test_workers_have_the_allocator_and_the_programs_that_a_handler_starts_do_not(
    processes: Rig, kafka: KafkaCluster, topic: str, left_behind: str
) -> None:
    processes.module(DIRTY.get(left_behind, "") + HANDLERS)
    template = processes.template("see_preloaded", tools().jemalloc)
    template.ready()
    noted = noted_by_a_worker_of(template, "see_preloaded", processes, kafka, topic)
    assert noted == ["mine True, a program's False, None"]


def test_what_the_module_printed_is_not_printed_again_by_workers(processes: Rig) -> None:
    processes.module("import os, sys\nsys.stdout = open('printed', 'w')\nprint('loaded', os.getpid())\n" + HANDLERS)
    template = processes.template("see")
    template.ready()
    for _ in range(2):
        worker = processes.fork(template)
        worker.hang_up()
        worker.exit_status()
    assert (processes.directory / "printed").read_text() == f"loaded {template.process.pid}\n"


def test_workers_outlive_their_template(processes: Rig, kafka: KafkaCluster, topic: str) -> None:
    kafka.create_topic(topic, 1)
    template = processes.template("see")
    template.ready()
    worker = processes.fork(template).configure(configuration(kafka.bootstrap, "handlers_under_test:see", [topic]))
    worker.start(topic, {0: 0})
    template.process.kill()
    template.process.wait()
    produce(kafka.bootstrap, topic, ["v"])
    worker.consumed(1, 1)
    worker.kill()
    assert worker.exit_status() == -signal.SIGKILL, "its true status, as its parent is who started the template"


@pytest.mark.parametrize(
    "packet", [b"nonsense", b'{"type":"Ping","sequence":1}', encode(Fork(0))], ids=["garbage", "message", "no fds"]
)
def test_a_malformed_packet_ends_the_template_with_a_clear_line(
    processes: Rig, packet: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    template = processes.template("see")
    template.ready()
    template.tell(packet)
    assert template.process.wait(60) == 1
    lines = capfd.readouterr().out.splitlines()
    assert len(lines) == 1
    assert "the supervisor sent nonsense" in lines[0]


def test_ctrl_c_and_sigterm_leave_the_template_alone(processes: Rig) -> None:
    template = processes.template("see")
    template.ready()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        template.process.send_signal(number)
    assert processes.fork(template).pid > 0


def test_a_worker_holds_no_socket_but_its_own(processes: Rig) -> None:
    template = processes.template("see")
    template.ready()
    workers = [processes.fork(template) for _ in range(3)]
    for worker in workers:
        wait_until(lambda pid=worker.pid: len(sockets(pid)) == 1, "a worker with one socket")  # type: ignore[misc]
    assert len(set().union(*(sockets(worker.pid) for worker in workers))) == 3


def test_no_program_that_a_workers_handler_starts_inherits_a_descriptor_of_the_worker(processes: Rig) -> None:
    template = processes.template("see")
    template.ready()
    worker = processes.fork(template)
    wait_until(lambda: len(sockets(worker.pid)) == 1, "a worker with one socket")
    assert [
        fd for fd in os.listdir(f"/proc/{worker.pid}/fd") if int(fd) > 2 and not _closes_on_exec(worker.pid, fd)
    ] == []


def _closes_on_exec(pid: int, fd: str) -> bool:
    (flags,) = (
        line.split()[1] for line in Path(f"/proc/{pid}/fdinfo/{fd}").read_text().splitlines() if "flags:" in line
    )
    return bool(int(flags, 8) & os.O_CLOEXEC)


def sockets(pid: int) -> set[str]:
    """The sockets that the process holds."""
    return {target for target in procfs.descriptors(pid) if target.startswith("socket:")}


def test_the_end_of_the_socket_ends_the_template_in_order(processes: Rig) -> None:
    template = processes.template("see")
    template.ready()
    template.socket.close()
    assert template.process.wait(60) == 0

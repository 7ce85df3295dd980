"""What a log call becomes, in the process that makes it and in its forks."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.unit.observe.programs import PREAMBLE, ran


def events(program: str, level: str = "info") -> list[dict[str, Any]]:
    out, _ = ran(f"logs.configure({level!r}, 'json', 'supervisor')\n{program}")
    return [json.loads(line) for line in out.splitlines()]


def test_an_event_carries_its_fields_and_whose_it_is() -> None:
    (event,) = events("log.info('joining', generation=3, owned=[1, 2])")
    assert (
        event.items()
        >= {
            "level": "info",
            "process": "supervisor",
            "logger": "kunicorn.test",
            "event": "joining",
            "generation": 3,
            "owned": [1, 2],
        }.items()
    )
    assert event["time"].endswith("Z")


def test_events_below_the_level_are_not_written() -> None:
    program = "for say in (log.debug, log.info, log.warning, log.error): say('x')"
    assert [event["level"] for event in events(program, "warning")] == ["warning", "error"]


def test_an_exception_comes_with_its_traceback_on_the_same_line() -> None:
    (event,) = events("try: 1 / 0\nexcept ZeroDivisionError: logging.getLogger('lib').exception('failed')")
    assert event["level"] == "error"
    assert "ZeroDivisionError: division by zero" in event["exception"]


def test_what_libraries_log_goes_the_same_way() -> None:
    program = "logging.getLogger('lib').warning('took %d ms', 5)\nlogging.getLogger('lib').debug('no')"
    (event,) = events(program)
    assert (event["logger"], event["level"], event["event"]) == ("lib", "warning", "took 5 ms")


@pytest.mark.parametrize("form", ["json", "text"])
def test_a_field_of_extra_named_as_the_event_or_its_exception_is_kept_beside_it(form: str) -> None:
    program = "logging.getLogger('shop').info('paid', extra={'event': 'order_paid', 'exception': 'none'})"
    out, _ = ran(f"logs.configure('info', '{form}', 'w')\n{program}")
    if form == "json":
        line = json.loads(out)
        assert (line["event"], line["event_"], line["exception_"]) == ("paid", "order_paid", "none")
        assert "exception" not in line
    else:
        assert out.endswith("paid  event_=order_paid exception_=none\n")


def test_what_a_handler_gives_as_extra_are_fields_of_the_line() -> None:
    (event,) = events("logging.getLogger('shop').info('paid', extra={'order': 7, 'level': 'gold'})")
    assert (event["event"], event["order"], event["level"], event["level_"]) == ("paid", 7, "info", "gold")


def test_a_handlers_line_names_the_record_in_hand_unless_it_names_another_itself() -> None:
    program = "logs.tell_place(lambda: {'topic': 'orders', 'offset': 5})\nlog = logging.getLogger('shop')\n"
    (event,) = events(program + "log.info('paid')")
    assert (event["topic"], event["offset"]) == ("orders", 5)
    (event,) = events(program + "log.info('paid', extra={'offset': 7})")
    assert (event["topic"], event["offset"]) == ("orders", 7)


def test_a_librarys_broken_log_call_is_still_told() -> None:
    (event,) = events("logging.getLogger('lib').error('took %d ms', 'x')")
    assert event["event"] == "took %d ms"
    assert event["arguments"] == "('x',)"


SILENT = """
class Order:
    def __repr__(self): raise RuntimeError("detached")
class Text(str):
    def __len__(self): raise RuntimeError("no length")
lib = logging.getLogger("shop")
"""


@pytest.mark.parametrize("form", ["json", "text"])
@pytest.mark.parametrize(
    ("call", "told"),
    [
        ("lib.info('paid %s', Order())", "paid %s"),
        ("lib.info(Order())", "Order, whose str() raised RuntimeError"),
        ("lib.info('paid', extra={'order': Order()})", "Order, whose str() raised RuntimeError"),
        ("lib.info('paid', extra={'orders': [Order()]})", "list, whose str() raised RuntimeError"),
        ("lib.info('paid', extra={'stack': Order()})", "Order, whose str() raised RuntimeError"),
        ("lib.info('paid', extra={'a\\ud800': 1})", "ud800"),
        ("lib.info('paid', extra={'a\\ud800': Order()})", "whose str() raised RuntimeError"),
        ("lib.info('paid', extra={'order': Text('x')})", ""),
        ("lib.handle(logging.makeLogRecord({'msg': 'paid', 'levelno': 20, 'exc_info': (1, 2, 3)}))", "paid"),
        ("log.info('paid', order=Order())", "Order, whose str() raised RuntimeError"),
    ],
)
def test_what_a_log_call_is_given_never_raises_into_whoever_logs(form: str, call: str, told: str) -> None:
    """Nor does it vanish."""
    out, err = ran(f"{SILENT}logs.configure('info', {form!r}, 'worker-1')\n{call}\nlog.info('handled')")
    *of_the_call, last = out.splitlines()
    assert told in "\n".join(of_the_call)
    assert of_the_call
    assert "handled" in last
    assert err == ""


def test_warnings_go_the_same_way() -> None:
    (event,) = events("warnings.warn('old')")
    assert "UserWarning: old" in event["event"]


def test_handlers_that_configure_logging_do_not_silence_us() -> None:
    program = "logging.basicConfig(level='CRITICAL')\nlogging.getLogger().handlers.clear()\nlog.info('still here')"
    assert [event["event"] for event in events(program)] == ["still here"]


def test_before_configuring_only_warnings_are_said_and_on_standard_error() -> None:
    out, err = ran("log.info('no')\nlog.warning('yes', a=1)")
    assert out == ""
    assert "yes  a=1" in err


def test_a_fork_configures_anew_and_both_write() -> None:
    program = """
log.info("parent before")
pid = os.fork()
if pid == 0:
    writer = logs.configure("info", "json", "worker-1")
    log.info("child")
    writer.close(5)
    os._exit(0)
os.waitpid(pid, 0)
log.info("parent after")
"""
    assert {(event["process"], event["event"]) for event in events(program)} == {
        ("supervisor", "parent before"),
        ("worker-1", "child"),
        ("supervisor", "parent after"),
    }


def test_a_fork_that_does_not_configure_never_writes_into_its_parents_queue() -> None:
    program = """
logs.configure("info", "json", "supervisor")
pid = os.fork()
if pid == 0:
    log.error("child")
    os._exit(0)
os.waitpid(pid, 0)
"""
    out, err = ran(program)
    assert out == ""
    assert "child" in err


def test_every_thread_may_log() -> None:
    program = """
def work(n):
    for i in range(200): log.info("x", n=n, i=i)
threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
[t.start() for t in threads]; [t.join() for t in threads]
"""
    found = events(program)
    assert len({(event["n"], event["i"]) for event in found}) == 1600


def test_the_last_words_of_a_process_that_fails_are_written() -> None:
    program = PREAMBLE + "logs.configure('info', 'json', 'x')\nlog.error('last words')\nraise SystemExit(3)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 3
    assert "last words" in done.stdout


@pytest.mark.parametrize(("terminal", "first"), [(True, "2"), (False, "{")])
def test_auto_is_text_on_a_terminal_and_json_elsewhere(terminal: bool, first: str) -> None:
    read_end, write_end = os.openpty() if terminal else os.pipe()
    program = f"w = logs.configure('info', 'auto', 'x', fd={write_end})\nlog.info('hello')\nw.close(5)"
    subprocess.run(
        [sys.executable, "-c", PREAMBLE + program],
        check=True,
        pass_fds=[write_end],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert os.read(read_end, 4096).decode().startswith(first)
    os.close(read_end)
    os.close(write_end)


def test_importing_the_module_changes_nothing_in_logging() -> None:
    out, _ = ran("print(logging.getLogger().handlers, logging.getLogger().level)")
    assert out == f"[] {logging.WARNING}\n"

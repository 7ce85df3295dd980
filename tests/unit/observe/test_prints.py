"""What is printed becomes whole lines of the log, in a process of its own: standard streams are a process's state."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.unit.observe.programs import ran

TAKEN = """
from kunicorn.observe import prints
logs.configure({level!r}, {format!r}, "worker-1")
logs.tell_place(lambda: {{"topic": "orders", "offset": 5}})
prints.take_over()
"""


def printed(program: str, level: str = "info") -> list[dict[str, Any]]:
    out, err = ran(TAKEN.format(level=level, format="json") + program)
    assert err == ""
    return [json.loads(line) for line in out.splitlines()]


def test_a_print_is_one_event_with_the_records_place() -> None:
    (line,) = printed("print('a', 1)")
    assert (line["event"], line["logger"], line["level"], line["process"]) == ("a 1", "stdout", "info", "worker-1")
    assert (line["topic"], line["offset"]) == ("orders", 5)


def test_standard_error_is_a_warning() -> None:
    (line,) = printed("print('oh', file=sys.stderr)")
    assert (line["logger"], line["level"]) == ("stderr", "warning")


def test_a_print_is_written_whatever_the_level_of_the_log() -> None:
    assert [line["event"] for line in printed("print('a'); logging.info('no')", level="error")] == ["a"]


def test_parts_and_flushes_do_not_tear_a_line_and_several_lines_are_several_events() -> None:
    program = "print('a', end=' ', flush=True); sys.stdout.flush(); print('b\\nc'); print()"
    assert [line["event"] for line in printed(program)] == ["a b", "c"]


def test_threads_do_not_tear_one_anothers_lines() -> None:
    program = """
def work(n):
    for i in range(200): print(n, i, n)
threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
[t.start() for t in threads]; [t.join() for t in threads]
"""
    expected = {f"{n} {i} {n}" for n in range(8) for i in range(200)}
    assert {line["event"] for line in printed(program)} == expected


def test_a_line_that_was_begun_is_written_at_the_end() -> None:
    assert [line["event"] for line in printed("print('rest', end=''); prints.finish()")] == ["rest"]


def test_a_line_that_never_ends_is_written_in_pieces() -> None:
    program = "[print('x' * 1000, end='\\r') for _ in range(40)]"
    lines = printed(program)
    assert len(lines) == 2
    assert all(len(line["event"]) > 16_000 for line in lines)


def test_bytes_that_are_no_text_are_shown() -> None:
    assert [line["event"] for line in printed("sys.stdout.buffer.write(b'a\\xff\\n')")] == ["a\\xff"]


def test_what_is_no_text_is_refused_as_by_python() -> None:
    (line,) = printed("try: sys.stdout.write(b'x')\nexcept TypeError as error: print(error)")
    assert line["event"] == "write() argument must be str, not bytes"


def test_a_taken_stream_has_all_that_a_standard_stream_has() -> None:
    program = """
print([[name for name in dir(real) if not name.startswith("_") and not hasattr(ours, name)]
       for real, ours in ((sys.__stdout__, sys.stdout), (sys.__stderr__, sys.stderr))])
print(sys.stdout.name, sys.stderr.name, sys.stdout.mode, sys.stdout.line_buffering)
"""
    assert [line["event"] for line in printed(program)] == ["[[], []]", "<stdout> <stderr> w True"]


@pytest.mark.parametrize(
    "asked",
    [
        "sys.stdout.reconfigure(line_buffering=True)",
        "sys.stdout.reconfigure(encoding='latin-1', errors='strict', newline='\\r\\n', write_through=True)",
        "import io; sys.stdout = io.TextIOWrapper(sys.stdout.buffer, encoding='utf-8', line_buffering=True)",
        "import codecs; sys.stdout = codecs.getwriter('utf-8')(sys.stdout.detach())",
    ],
)
def test_a_handler_that_sets_its_standard_output_up_goes_on_printing_lines_of_the_log(asked: str) -> None:
    assert [line["event"] for line in printed(f"{asked}\nprint('äöü')\nsys.stdout.flush()")] == ["äöü"]


def test_a_stream_for_people_has_the_same_form_and_its_lines_as_they_were_printed() -> None:
    program = "from kunicorn.observe import prints\nprints.take_over_as_text('json')\n"
    program += "assert isinstance(sys.stdout, prints.Printed)\nprint('a', 1)\nprint()\nprint('\\udcff', end='')\n"
    out, err = ran(program + "print('oh', file=sys.stderr)\nprints.finish()")
    assert (out, err) == ("a 1\n\n\\udcff\n", "oh\n")


def test_a_program_that_is_started_has_the_stream_beneath() -> None:
    out, _ = ran(TAKEN.format(level="info", format="json") + "import subprocess; subprocess.run(['echo', 'raw'])")
    assert out == "raw\n"


def test_a_stream_that_the_handler_has_put_there_stays() -> None:
    program = (
        "import io\nmine = sys.stdout = io.StringIO()\nprints.take_over()\nprint('x')\nassert mine.getvalue() == 'x\\n'"
    )
    out, err = ran("from kunicorn.observe import prints\nlogs.configure('info', 'json', 'w')\n" + program)
    assert (out, err) == ("", "")


def test_a_log_of_text_leaves_prints_as_they_are() -> None:
    out, _ = ran(TAKEN.format(level="info", format="text") + "print('a', 1)")
    assert out == "a 1\n"


@pytest.mark.parametrize("raised", ["ValueError('x')", "KeyError()"])
def test_a_thread_that_ends_by_an_exception_is_one_event(raised: str) -> None:
    program = f"def work(): raise {raised}\nt = threading.Thread(target=work, name='w'); t.start(); t.join()"
    (line,) = printed(program)
    assert line["event"] == "thread w has ended by an exception"
    assert raised.partition("(")[0] in line["exception"]


def test_a_fork_goes_on_in_json_on_standard_error() -> None:
    program = """
pid = os.fork()
if pid == 0:
    print("child"); prints.finish()
    os._exit(0)
os.waitpid(pid, 0)
"""
    out, err = ran(TAKEN.format(level="info", format="json") + program)
    assert out == ""
    assert json.loads(err)["event"] == "child"

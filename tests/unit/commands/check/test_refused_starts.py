"""What ends a worker's start is found by `kunicorn check`, with the exit code that `kunicorn run` has then."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from kunicorn.clients.config import handler_configs
from kunicorn.commands.check import trial
from kunicorn.commands.check.cluster import Finding
from kunicorn.commands.check.session import check
from kunicorn.errors import ExitCode
from kunicorn.ipc.ledger import Ledger
from kunicorn.settings import Settings
from kunicorn.supervisor.workers.config import configure
from kunicorn.worker.assembly import CannotServe, assemble
from tests.fakes.complete_settings import settings_of
from tests.fakes.handler_module import importable

HANDLERS = """
def handle(record):
    pass

class Kept:
    def load_offsets(self, partitions):
        return {}

    def store_offsets(self, offsets):
        pass

    async def handle(self, record):
        pass
"""
WANTS_A_FILE = "import sys\nsys.stdout._CHUNK_SIZE\n\ndef handle(record): ...\n"
"""A stream whose lines are the log's reads and writes no chunks."""
TIMEOUT = 120.0


@pytest.fixture(autouse=True)
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    importable(tmp_path, monkeypatch, "checked_shop", HANDLERS)


def settings(entrypoint: str, handler: dict[str, Any], **tables: Any) -> Settings:
    return settings_of(handler={"entrypoint": f"checked_shop:{entrypoint}", **handler}, **tables)


def refusal(own: Settings) -> CannotServe:
    ledger = Ledger.create(2)
    try:
        with pytest.raises(CannotServe) as refused:
            assemble(configure(own, 0, [], None, 1), ledger, lambda message: None)
        return refused.value
    finally:
        ledger.close()


def end_of_a_worker(own: Settings) -> ExitCode:
    return refusal(own).status


REFUSED: dict[str, tuple[str, dict[str, Any], dict[str, Any], str]] = {
    "a plain function by key": ("handle", {"ordering": "key"}, {}, "handler.ordering = 'key'"),
    "a plain function in no order": ("handle", {"ordering": "none"}, {}, "handler.ordering = 'none'"),
    "a producer's property that there is not": (
        "handle",
        {},
        {"producing": {"delivery": "at_least_once", "librdkafka": {"batch.sizes": 5}}},
        "correct 'batch.sizes' in [producing.librdkafka]",
    ),
    "offsets of its own by key": ("Kept", {"ordering": "key"}, {}, "keeps its offsets itself (load_offsets)"),
    "offsets of its own and retry topics": (
        "Kept",
        {"retry_topic_delays_ms": [5000]},
        {},
        "lies behind them; remove the delays, or load_offsets",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_worker_refuses_is_found_before_the_cluster_is_asked(name: str) -> None:
    entrypoint, handler, tables, said = REFUSED[name]
    own, found = settings(entrypoint, handler, **tables), list[Finding]()
    assert check(own, found.append, waits=True) == ExitCode.CONFIGURATION == end_of_a_worker(own)
    assert any(said in each.text for each in found if each.failure is not None)


def test_options_that_nothing_reads_are_found_without_a_call_of_setup() -> None:
    own, found = settings("handle", {"options": {"currency": "EUR"}}), list[Finding]()
    assert check(own, found.append, waits=True) == ExitCode.HANDLER == end_of_a_worker(own)
    assert any("has no setup(options) to read it" in each.text for each in found)


def test_the_own_fetcher_without_its_decoder_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    own, found = settings("handle", {}, kafka={"fetcher": "own"}), list[Finding]()
    monkeypatch.setitem(sys.modules, "kunicorn_columns", None)
    assert check(own, found.append, waits=True) == ExitCode.CONFIGURATION == end_of_a_worker(own)
    assert any('kafka.fetcher = "own": kunicorn_columns is not installed' in each.text for each in found)


def test_a_setting_that_setup_refuses_has_the_exit_code_of_settings() -> None:
    own = settings("Kept", {"ordering": "key"})
    finding = trial.set_up(own)
    assert finding.failure == ExitCode.CONFIGURATION == end_of_a_worker(own)
    assert "keeps its offsets itself" in finding.text


def test_a_handler_that_a_worker_takes_is_importable() -> None:
    (config,) = handler_configs(settings("handle", {"ordering": "key", "concurrency": 2}))
    assert trial.importable(config, TIMEOUT) == Finding("handler", "checked_shop:handle can be imported and called")


@pytest.mark.parametrize(("form", "found"), [("json", ExitCode.HANDLER), ("text", ExitCode.CLEAN)])
def test_a_handler_is_imported_and_set_up_with_the_standard_streams_that_a_worker_has(
    form: str, found: ExitCode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    importable(tmp_path, monkeypatch, "file_shop", WANTS_A_FILE)
    own = settings("", {"entrypoint": "file_shop:handle"}, log={"format": form}, http={"port": 0})
    lines = list[Finding]()
    check(own, lines.append)
    assert next(line for line in lines if line.what == "handler").failure == (found or None)
    assert (trial.set_up(own).failure or ExitCode.CLEAN) == found


HALF_A_MODULE = """
import time

class Raises:
    def setup(self, options):
        raise ConnectionError("no database")

    def handle(self, record): ...

class CannotBeMade:
    def __init__(self):
        raise ConnectionError("no database")

    def handle(self, record): ...

class WithoutHandle: ...

def handle(record): ...
"""
FAILING: dict[str, tuple[str, dict[str, Any]]] = {
    "an entry point that is not there any more": ("handle_order", {}),
    "one whose method is not": ("WithoutHandle", {}),
    "a middleware that is not there any more": ("handle", {"middlewares": ["half_a_module:timed"]}),
    "a filter that is not": ("handle", {"filters": [{"function": "half_a_module:is_ours"}]}),
    "a decoder that is not": ("handle", {"value": "half_a_module:order"}),
    "a setup that raises": ("Raises", {}),
    "an instance that cannot be made": ("CannotBeMade", {}),
}


@pytest.mark.parametrize("what", FAILING)
def test_a_worker_tells_a_handler_that_cannot_be_imported_from_one_that_cannot_be_set_up(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    importable(tmp_path, monkeypatch, "half_a_module", HALF_A_MODULE)
    entrypoint, handler = FAILING[what]
    refused = refusal(settings("", {"entrypoint": f"half_a_module:{entrypoint}", **handler}))
    set_up = what in ("a setup that raises", "an instance that cannot be made")
    assert (refused.report.stage, refused.status) == ("handler" if set_up else "import", ExitCode.HANDLER)

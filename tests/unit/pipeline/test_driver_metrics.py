"""The driver's /metrics."""

from __future__ import annotations

import socket
import ssl
import threading
import urllib.request
from pathlib import Path

import pytest

from kunicorn.observe.catalogue import every_of_jobs
from kunicorn.pipeline.metrics_port import Exposed, _Request
from kunicorn.pipeline.report import Tasks
from kunicorn.pipeline.state import Counts
from kunicorn.settings import HttpSettings
from tests.kafka.certificates import Certificates, make_certificates
from tests.kafka.ports import kept_port


def served(http: HttpSettings, trusted: ssl.SSLContext | None = None) -> str:
    url = f"{http.scheme}://127.0.0.1:{http.port}/metrics"
    with urllib.request.urlopen(url, timeout=60, context=trusted) as answer:
        return str(answer.read().decode())


def secured(made: Certificates, key: str = "server") -> HttpSettings:
    files = {"tls_certificate_file": str(made.certificate("server")), "tls_key_file": str(made.key(key))}
    return HttpSettings.model_validate({"host": "127.0.0.1", "port": kept_port(), **files})


def test_with_a_certificate_they_are_served_over_tls_and_a_bad_one_is_only_said(tmp_path: Path) -> None:
    made, said = make_certificates(tmp_path, "hunter2"), list[str]()
    with Exposed(asked := secured(made), "catch-up", said.append) as exposed:
        exposed.moved(Counts(records=7), saves=1, left=30)
        told = served(asked, ssl.create_default_context(cafile=str(made.ca)))
    assert 'kunicorn_pipeline_records{job="catch-up",outcome="records"} 7.0' in told
    assert said == []
    with Exposed(secured(made, "client"), "catch-up", said.append):
        pass
    assert len(said) == 1
    assert said[0].startswith("no metrics: http.tls_certificate_file = ")
    assert "are not a certificate and its key in PEM" in said[0]


def test_who_never_ends_the_handshake_holds_up_neither_others_nor_the_jobs_end(tmp_path: Path) -> None:
    made = make_certificates(tmp_path, "hunter2")
    exposed = Exposed(http := secured(made), "catch-up", print).__enter__()
    with socket.create_connection((http.host, http.port)):
        assert "kunicorn_pipeline" in served(http, ssl.create_default_context(cafile=str(made.ca)))
        ending = threading.Thread(target=exposed.__exit__, args=(None, None, None), daemon=True)
        ending.start()
        ending.join(30)
        assert not ending.is_alive()


@pytest.mark.parametrize("tls", [False, True])
def test_who_says_nothing_is_let_go_without_a_word(
    tmp_path: Path, tls: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(_Request, "timeout", 0.05)
    http = secured(make_certificates(tmp_path, "x")) if tls else HttpSettings(host="127.0.0.1", port=kept_port())
    with Exposed(http, "export", print), socket.create_connection((http.host, http.port), timeout=60) as silent:
        assert silent.recv(1) == b""
    assert capsys.readouterr() == ("", "")


def test_counters_are_served_while_the_job_runs_and_a_taken_port_is_only_said() -> None:
    http, said = HttpSettings(host="127.0.0.1", port=kept_port()), list[str]()
    with Exposed(http, "catch-up", said.append) as exposed:
        exposed.moved(Counts(records=7, skipped=1), saves=2, left=30)
        exposed.underway(Tasks(8, done=3, running=2))
        told = served(http)
        with Exposed(http, "export", said.append):
            pass
        exposed.underway(Tasks(8, done=3, running=2, offsets=12))
        assert 'kunicorn_pipeline_offsets_left{job="catch-up"} 18.0' in served(http), "before the round ends"
        exposed.moved(Counts(records=25), saves=3, left=14)
        exposed.underway(Tasks())
        assert 'kunicorn_pipeline_offsets_left{job="catch-up"} 14.0' in served(http)
    assert 'kunicorn_pipeline_records{job="catch-up",outcome="records"} 7.0' in told
    assert 'kunicorn_pipeline_offsets_left{job="catch-up"} 30.0' in told
    assert 'kunicorn_pipeline_tasks{job="catch-up",state="done"} 3.0' in told
    assert {line.split("{")[0] for line in told.splitlines() if not line.startswith("#")} == {
        declared.name for declared in every_of_jobs()
    }
    assert len(said) == 1
    assert "set http.port" in said[0]

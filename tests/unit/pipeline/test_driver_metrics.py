"""The driver's /metrics."""

from __future__ import annotations

import urllib.request

from kunicorn.observe.catalogue import every_of_jobs
from kunicorn.pipeline.report import Exposed, Tasks
from kunicorn.pipeline.state import Counts
from kunicorn.settings import HttpSettings
from tests.system.members import free_port


def served(http: HttpSettings) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{http.port}/metrics", timeout=5) as answer:
        return str(answer.read().decode())


def test_counters_are_served_while_the_job_runs_and_a_taken_port_is_only_said() -> None:
    http, said = HttpSettings(host="127.0.0.1", port=free_port()), list[str]()
    with Exposed(http, "catch-up", said.append) as exposed:
        exposed.moved(Counts(records=7, skipped=1), rounds=2, left=30)
        exposed.underway(Tasks(8, done=3, running=2))
        told = served(http)
        with Exposed(http, "export", said.append):
            pass
        exposed.underway(Tasks(8, done=3, running=2, offsets=12))
        assert 'kunicorn_pipeline_offsets_left{job="catch-up"} 18.0' in served(http), "before the round ends"
        exposed.moved(Counts(records=25), rounds=3, left=14)
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

"""Every metric of `kunicorn pipeline`, which its driver serves while a job runs; docs/metrics.md has them, too."""

from __future__ import annotations

from kunicorn.observe.catalogue import Declared, Kind

RECORDS = Declared(
    "kunicorn_pipeline_records", Kind.GAUGE, "Records of finished rounds by what became of them: records (taken by the "
    "handler), skipped, dead_letters.",
    "dead_letters rising: the run's outcome table has each with its error; `kunicorn dlq list` counts those sent.",
    ("job", "outcome"),
)  # fmt: skip
LEFT = Declared(
    "kunicorn_pipeline_offsets_left", Kind.GAUGE, "Offsets that are still to be handled, those of the round "
    "underway by what its tasks tell; absent for stream, which has no end.",
    "Flat: Spark has no executors, or the handler waits between tries. Where the driver sees no file of its executors "
    "a task counts when it ends, so that flat for less than pipeline.round_seconds says nothing.",
    ("job",),
)  # fmt: skip
ROUNDS = Declared(
    "kunicorn_pipeline_rounds", Kind.GAUGE, "Rounds or micro-batches that are through.",
    "Flat: a round takes long, or Spark tries its tasks again; Spark's UI tells which.", ("job",),
)  # fmt: skip
TASKS = Declared(
    "kunicorn_pipeline_tasks", Kind.GAUGE, "Tasks of the round underway, one a range: done, running, failed.",
    "failed above 0: Spark tries them again, four times each; its UI has the reason.", ("job", "state"),
)  # fmt: skip


def every() -> list[Declared]:
    """All declarations, in this file's order."""
    return [value for value in globals().values() if isinstance(value, Declared)]

"""[workers]: the processes that fetch and handle."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from kunicorn.allocator import AUTO
from kunicorn.settings.cpus import available_cpus
from kunicorn.settings.rules import WORKER_RULES, check
from kunicorn.settings.section import Section


class WorkerSettings(Section):
    """The processes that fetch and handle."""

    count: int = Field(
        default_factory=available_cpus,
        ge=1,
        le=1024,
        examples=[4],
        json_schema_extra={"default": "the CPUs this container may use (cgroup quota and affinity)"},
        description="Most workers; those beyond the assigned partitions are not started.",
    )
    memory_per_worker_mb: int = Field(
        256, ge=32, le=1_048_576, description="Memory to plan for each worker; sizes its fetch buffers."
    )
    allocator: str = Field(
        AUTO,
        min_length=1,
        examples=["auto", "system", "/usr/lib/x86_64-linux-gnu/libmimalloc.so.2"],
        description="The memory allocator of workers: jemalloc where it is installed (auto), the C library's (system), "
        "or that of the library with this path. glibc's costs up to a third of a worker's records a second, as the "
        "client allocates in one thread what another one frees. Preloaded into workers, and into Spark's Python "
        "processes; an LD_PRELOAD that is there already is left alone by auto, and comes after a path.",
    )
    sharing: Literal["load", "count"] = Field(
        "load",
        description="How partitions are shared out over the workers: as many for each (count), and then by what they "
        "take of their workers' time (load): one after the other goes from the busiest worker to the idlest, where it "
        "pays. The group sees nothing of it.",
    )
    sharing_interval_ms: int = Field(
        5000,
        ge=100,
        le=3_600_000,
        description="With sharing = load: shortest time between two moves; one that was moved stays for six of them.",
    )
    sharing_gap_percent: int = Field(
        20,
        ge=5,
        le=95,
        description="With sharing = load: how far the busiest worker must be ahead of the idlest before one moves.",
    )
    max_crashes: int = Field(
        2,
        ge=1,
        description="After so many worker deaths with the same record in hand its partition halts, "
        "or the record goes the way that handler.on_failure says. Where others may be to blame as well, as many deaths "
        "single it out first.",
    )
    start_timeout_ms: int = Field(
        300_000,
        ge=1000,
        le=86_400_000,
        description="How long a worker may take until it is ready, its handler's setup included. One that takes longer "
        "is killed, its stacks logged, and started again. From five seconds on the others have its partitions.",
    )
    max_records: int | None = Field(
        None,
        ge=1,
        examples=[1_000_000],
        description="A worker that has handled so many records is replaced, without a rebalance; for handlers that "
        "leak.",
    )
    max_age_s: int | None = Field(
        None,
        ge=1,
        examples=[86_400],
        description="A worker is replaced after so many seconds, or up to a tenth earlier, so that workers do not "
        "take turns all at once.",
    )
    max_rss_mb: int | None = Field(
        None,
        ge=32,
        examples=[512],
        description="A worker whose resident memory is larger is replaced; leave room above memory_per_worker_mb "
        "for what the handler itself needs.",
    )

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        return check(self, "workers", WORKER_RULES)

"""The section [pipeline]: the same handler over ranges of offsets, on Spark. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from kunicorn.settings.checks import Count, Section, is_group_id
from kunicorn.settings.problems import is_secret
from kunicorn.settings.rules import Rule, check

OWNED_SPARK_SETTINGS: Mapping[str, str] = {
    "spark.master": "use --master",
    "spark.app.name": "a run is named by its id; use --run",
    "spark.speculation": "a range handled by two tasks at once is handled twice",
}
"""Settings of Spark that [pipeline.spark] may not have, each with what to do instead, or why not."""


def default_stream_group(group_id: str) -> str:
    """Group that `stream` mirrors its offsets to where none is named."""
    return f"{group_id}.stream"


def _spark_settings(settings: Any) -> Any:
    if not isinstance(settings, Mapping):
        return settings
    for name, value in settings.items():
        if not name.startswith("spark."):
            raise ValueError(f'{name!r} is no setting of Spark; put the whole name in quotes: "spark.executor.memory"')
        if reason := OWNED_SPARK_SETTINGS.get(name):
            raise ValueError(f"{name!r} cannot be set here: {reason}")
        if not isinstance(value, str):
            raise ValueError(f"{name!r} is {type(value).__name__}; write a text, as Spark's settings all are")
    return settings


_SECRET = re.compile(r"key|signature|passw|pwd|passphrase|authorization|connection.string", re.IGNORECASE)
_SECRET_PART = re.compile(
    r"(token|secret|passw\w*|pwd|passphrase|credential|key|signature|\bsig)[\w.-]*\s*=", re.IGNORECASE
)
"""Of a URL's query, a connection string, or options of a JVM."""


def has_secret(name: str, value: str) -> bool:
    """Whether this property of a catalog or of Spark is a secret, by its name, or has one in it, as a URL with a
    password."""
    if is_secret(name) or _SECRET.search(name) or _SECRET_PART.search(value):
        return True
    _, is_url, rest = value.partition("://")
    user, at, _ = rest.partition("@")
    return bool(is_url and at) and _with_password(f"{user}@", ports=True)


STORES = frozenset({"s3", "s3a", "gs", "abfs", "abfss"})
"""Schemes of object stores. They put an object whole, and if it is asked for only where there is none (S3:
`If-None-Match`)."""


def is_place(url: str) -> str:
    """A directory, or a URL of one without secrets: it is shown, and stands in Spark's plans. Raises `ValueError`,
    which quotes nothing but the scheme."""
    scheme, is_url, rest = url.partition("://")
    if not is_url:
        return url
    if _with_password(rest, ports=scheme.lower() not in STORES):
        raise ValueError(
            f"{scheme}://… has a password in it: leave it out, rights are found in the environment; "
            f"docs/pipeline.md says where"
        )
    if "?" in rest or "#" in rest:
        # Its values may be secrets. And whatever is put behind the URL would be a part of them: all directories of
        # a job would be the one in front.
        raise ValueError(
            f"{scheme}://… has a ? or a # in it: leave out what follows; endpoints and rights are found in the "
            f"environment, docs/pipeline.md says where"
        )
    return url


def _with_password(rest: str, *, ports: bool) -> bool:
    """Whether the URL's part behind its scheme has a user's password in it, also one with a slash, which ends the
    authority for whoever takes URLs apart. `ports`: digits behind a host are none.
    """
    user, at, _ = rest.rpartition("@")
    return bool(at) and ":" in (re.sub(r"^[^/@:]*:\d+(?=/)", "", user) if ports else user)


def _catalog_properties(settings: Any) -> Any:
    if not isinstance(settings, Mapping):
        return settings
    for name, value in settings.items():
        if not isinstance(value, str):
            raise ValueError(f"{name!r} is {type(value).__name__}; write a text, as properties of catalogs all are")
        if has_secret(name, value):
            told = name.upper().replace(".", "__").replace("-", "_")
            raise ValueError(
                f"{name!r} is a secret, or has one in it: set it in the driver's environment, where pyiceberg finds "
                f"it: PYICEBERG_CATALOG__DEFAULT__{told}, with pipeline.iceberg_catalog's name for DEFAULT"
            )
    return settings


_RULES = (
    Rule(
        "min_partitions",
        lambda s: s.min_partitions is None or s.ordering == "none",
        'cuts a Kafka partition over several tasks, which breaks the order of its records; set ordering = "none" if '
        "the handler does not need it, or remove this",
    ),
)


class PipelineSettings(Section):
    """Jobs on Spark: `kunicorn pipeline`. The settings have the names of Spark's own Kafka source where it has them."""

    directory: Annotated[str, AfterValidator(is_place)] = Field(
        "pipeline-runs",
        min_length=1,
        description="Where runs keep their manifests and outcomes: a directory that driver and executors share, or a "
        "URL such as s3://bucket/runs.",
    )
    ordering: Literal["partition", "none"] = Field(
        "partition",
        description="partition: a Kafka partition's records are handled one after the other. none: they may be cut "
        "over several tasks.",
    )
    min_partitions: int | None = Field(
        None,
        ge=1,
        le=1_000_000,
        examples=[64],
        description='Cut the largest ranges until there are so many tasks; only with ordering = "none".',
    )
    max_offsets_per_trigger: Count | None = Field(
        None,
        examples=[1_000_000],
        description="Most offsets underway (of an export's round, of a stream's micro-batch), shared out over the "
        "partitions in proportion to what each has left. A killed run repeats so many at most.",
    )
    max_records_per_second: Count | None = Field(
        None,
        examples=[5_000],
        description="Most records that a job reads in a second, all its tasks together; left out, there is no limit. "
        "handler.rate_limit is the live service's alone.",
    )
    max_bytes_per_second: Count | None = Field(
        None,
        examples=[50_000_000],
        description="Most bytes of keys and values that a job reads in a second, all its tasks together; left out, "
        "there is no limit.",
    )
    range_seconds: int = Field(
        30,
        ge=1,
        le=86_400,
        description="How long a range is to take; its size follows from the pace of its partition's last one.",
    )
    fail_on_data_loss: bool = Field(
        True, description="End with an error where offsets are gone that were to be handled; false goes on behind them."
    )
    dead_letters: Literal["topic", "outcomes"] = Field(
        "topic",
        description="Where records go whose failure ends in a dead letter: to the dead-letter topic, or only into the "
        "run's outcomes.",
    )
    stream_group_id: Annotated[str, AfterValidator(is_group_id)] | None = Field(
        None,
        examples=["orders.stream"],
        json_schema_extra={"default": "`<group.id>.stream`"},
        description="The group that stream commits its offsets to, for dashboards; never the live service's.",
    )
    spark: Annotated[Mapping[str, str], BeforeValidator(_spark_settings)] = Field(
        default={},
        repr=False,
        examples=[{"spark.executor.memory": "2g"}],
        description="Further settings of Spark, their dotted names in quotes. No secrets: Spark shows them.",
    )

    iceberg_catalog: str = Field(
        "default",
        min_length=1,
        description="Name of the catalog that has the tables of `export --to iceberg`, as pyiceberg's own settings "
        "name it: PYICEBERG_CATALOG__DEFAULT__… in the driver's environment, or .pyiceberg.yaml.",
    )
    iceberg: Annotated[Mapping[str, str], BeforeValidator(_catalog_properties)] = Field(
        default={},
        examples=[{"type": "rest", "uri": "https://catalog.example.com"}],
        description="Properties of that catalog, as pyiceberg has them. No secrets: those are found in the driver's "
        "environment.",
    )

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        return check(self, "pipeline", _RULES)


PIPELINE_RULES = (
    Rule(
        "pipeline.stream_group_id",
        lambda s: s.pipeline.stream_group_id != s.group.id,
        "the same as group.id, whose offsets are the live service's; name another group",
    ),
)
"""Of the settings as a whole."""

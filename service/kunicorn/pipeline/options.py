"""The source's options, named as those of Spark's own Kafka source where it has them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kunicorn.errors import ConfigError
from kunicorn.pipeline.executors import SettingsFile, settings_file
from kunicorn.settings import Settings, load

KNOWN = (
    "config", "rows", "subscribe", "subscribePattern", "startingOffsets", "endingOffsets",
    "startingTimestamp", "endingTimestamp", "startingOffsetsByTimestamp", "endingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy", "maxOffsetsPerTrigger", "minPartitions", "failOnDataLoss",
)  # fmt: skip
_REFUSED = "security and all else about the cluster is in the settings' file, out of Spark's sight: option config"


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Validated; travels to the executors."""

    file: SettingsFile
    rows: str
    """"records" or "ranges"."""
    topics: Sequence[str]
    fail_on_data_loss: bool
    min_partitions: int | None
    max_offsets_per_trigger: int | None

    @classmethod
    def of(cls, options: Mapping[str, str]) -> SourceOptions:
        """From a mapping that ignores the case of names, as Spark's does. Raises `ConfigError`."""
        _check_names(options)
        if (path := options.get("config")) is None:
            raise ConfigError("the option config is missing: name the settings' file, the same path on every executor")
        file = settings_file(Path(path), load(Path(path), os.environ))
        pipeline = file.settings().pipeline
        rows = options.get("rows", "records")
        if rows not in {"records", "ranges"}:
            raise ConfigError(f"rows = {rows!r} is neither records nor ranges; choose one")
        return cls(
            file,
            rows,
            _topics(options, file.settings()),
            _flag(options, "failOnDataLoss", pipeline.fail_on_data_loss),
            _count(options, "minPartitions", pipeline.min_partitions),
            _count(options, "maxOffsetsPerTrigger", pipeline.max_offsets_per_trigger),
        )

    def settings(self) -> Settings:
        """As this process reads them."""
        return self.file.settings()


def _check_names(options: Mapping[str, str]) -> None:
    known = {name.lower() for name in KNOWN}
    for name in options:
        if name.lower() in known or name.lower() == "path":
            continue
        raise ConfigError(f"the source knows no option {name!r}: {_REFUSED if '.' in name else 'see docs/pipeline.md'}")


def _topics(options: Mapping[str, str], settings: Settings) -> Sequence[str]:
    if (pattern := options.get("subscribePattern")) is not None:
        return [f"^{pattern.removeprefix('^')}"]
    if (names := options.get("subscribe")) is not None:
        return [name.strip() for name in names.split(",") if name.strip()]
    return settings.group.topics or settings.assign.wanted.topics


def _flag(options: Mapping[str, str], name: str, default: bool) -> bool:
    text = options.get(name, str(default)).lower()
    if text not in {"true", "false"}:
        raise ConfigError(f"{name} = {text!r} is neither true nor false; choose one")
    return text == "true"


def _count(options: Mapping[str, str], name: str, default: int | None) -> int | None:
    text = options.get(name)
    if text is None:
        return default
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise ConfigError(f"{name} = {text!r} is no number from 1 on; correct it")
    return int(text)

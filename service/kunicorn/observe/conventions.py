"""Names, units and attributes of our metrics as OpenTelemetry's semantic conventions have them, 1.44. Pure.

Four metrics are those of the messaging conventions (`messaging.…`). The others keep their names, with dots behind the
namespace and the unit taken out of the name: a Prometheus server that takes OTLP makes the names of `/metrics` of them,
so that alerts and dashboards find them either way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kunicorn.observe import catalogue as c
from kunicorn.observe.catalogue import Declared

SCHEMA = "https://opentelemetry.io/schemas/1.44.0"
_SYSTEM = {"messaging.system": "kafka"}
_NAMESPACES = ("kunicorn_", "kafka_consumer_")
_UNITS = {"_seconds": "s", "_bytes": "By"}
_ATTRIBUTES: Mapping[str, str] = {
    "group": "messaging.consumer.group.name",
    "topic": "messaging.destination.name",
    "partition": "messaging.destination.partition.id",
    "operation": "messaging.operation.name",
    "error_type": "error.type",
}


@dataclass(frozen=True, slots=True)
class Convention:
    """One metric as OTLP carries it."""

    name: str
    unit: str = ""
    """In UCUM; empty where the name says what is counted."""
    attributes: Mapping[str, str] = field(default_factory=dict)
    """Those that all its points have."""
    buckets: tuple[float, ...] = ()
    """Of a histogram whose bounds the conventions name: some of those that we keep."""
    without: frozenset[str] = frozenset()
    """Labels that the conventions do not know."""


_PROCESS = {"messaging.operation.name": "process", **_SYSTEM}
_MESSAGING: Mapping[str, Convention] = {
    c.CONSUMED.name: Convention("messaging.client.consumed.messages", "{message}", _PROCESS),
    c.PROCESS_SECONDS.name: Convention("messaging.process.duration", "s", _PROCESS, c.CONVENTIONAL),
    c.SENT.name: Convention(
        "messaging.client.sent.messages",
        "{message}",
        {"messaging.operation.name": "send", **_SYSTEM},
        without=frozenset({"group"}),
    ),
    c.OPERATION_SECONDS.name: Convention("messaging.client.operation.duration", "s", _SYSTEM, c.CONVENTIONAL),
}
_TYPES = {"send": "send", "commit": "settle"}
"""`messaging.operation.type` by operation."""


def convention_of(declared: Declared) -> Convention:
    """The metric of that declaration."""
    if (messaging := _MESSAGING.get(declared.name)) is not None:
        return messaging
    namespace = next(each for each in _NAMESPACES if declared.name.startswith(each))
    rest, unit = declared.name.removeprefix(namespace), ""
    for suffix, of_suffix in _UNITS.items():
        if rest.endswith(suffix):
            rest, unit = rest.removesuffix(suffix), of_suffix
    return Convention(namespace.replace("_", ".") + rest, unit)


def attributes_of(labels: Mapping[str, str], convention: Convention) -> dict[str, str]:
    """Attributes of one series; an empty label is none."""
    attributes = dict(convention.attributes)
    for label, value in labels.items():
        if value and label not in convention.without:
            attributes[_ATTRIBUTES.get(label, f"kunicorn.{label}")] = value
    if (operation := labels.get("operation")) is not None:
        attributes["messaging.operation.type"] = _TYPES[operation]
        if operation == "send":
            del attributes[_ATTRIBUTES["group"]]
    return attributes

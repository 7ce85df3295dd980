"""Settings of the service: one TOML file, overridden by the environment (`KUNICORN_<SECTION>__<NAME>`).

`load` is the way in, for every process that reads them. `sections` and the modules beside it declare them; `python -m
kunicorn.settings` writes the pages and the chart's parts that are generated from the declarations.
"""

from kunicorn.settings.assign import AssignSettings
from kunicorn.settings.handler import DeadLetterSettings, FailureSettings, HandlerSettings
from kunicorn.settings.load import at_a_desk, load, shown
from kunicorn.settings.pipeline import PipelineSettings
from kunicorn.settings.producing import ProducingSettings
from kunicorn.settings.schema_registry import SchemaRegistrySettings
from kunicorn.settings.sections import GroupSettings, HttpSettings, KafkaSettings, LogSettings, Settings
from kunicorn.settings.workers import WorkerSettings

__all__ = [
    "AssignSettings",
    "DeadLetterSettings",
    "FailureSettings",
    "GroupSettings",
    "HandlerSettings",
    "HttpSettings",
    "KafkaSettings",
    "LogSettings",
    "PipelineSettings",
    "ProducingSettings",
    "SchemaRegistrySettings",
    "Settings",
    "WorkerSettings",
    "at_a_desk",
    "load",
    "shown",
]

"""The settings: one TOML file, the environment over it (`KUNICORN_<SECTION>__<NAME>`).

`load` is the way in. `python -m kunicorn.settings` writes what is generated from the declarations.
"""

from kunicorn.settings.assign import AssignSettings
from kunicorn.settings.handler import DeadLetterSettings, FailureRule, HandlerSettings
from kunicorn.settings.load import at_a_desk, load, shown
from kunicorn.settings.pipeline import PipelineSettings
from kunicorn.settings.producing import ProducingSettings
from kunicorn.settings.schema_registry import SchemaRegistrySettings
from kunicorn.settings.sections import GroupSettings, HttpSettings, KafkaSettings, LogSettings, Settings
from kunicorn.settings.workers import WorkerSettings

__all__ = [
    "AssignSettings",
    "DeadLetterSettings",
    "FailureRule",
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

"""Settings of a job whose tasks the tests call themselves; nobody listens at its brokers."""

from __future__ import annotations

_TEXT = """
[kafka]
bootstrap_servers = ["localhost:1"]
[group]
id = "g"
topics = ["orders"]
[handler]
entrypoint = "{entrypoint}"
"""


def task_settings(entrypoint: str, *lines: str) -> str:
    """A settings file; `lines` of [handler]."""
    return _TEXT.format(entrypoint=entrypoint) + "".join(f"{line}\n" for line in lines)

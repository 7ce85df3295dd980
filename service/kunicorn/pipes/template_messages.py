"""What supervisor and template say to one another."""

from __future__ import annotations

import msgspec

from kunicorn.pipes.tagged import Tagged


class Preload(Tagged, frozen=True):
    """The template's first frame: what to import, and where from."""

    entrypoints: list[str]
    path: list[str]
    """`sys.path` of the supervisor, so that a handler found only there is found again."""
    supervisor: int
    """The supervisor's pid: whoever has another parent must not live on."""
    log_level: str
    log_format: str
    allocator: str = ""
    """The library that is preloaded into the template, and so into workers; empty for none."""


class TemplateReady(Tagged, frozen=True):
    """The import is done. With `preloaded` false the handler starts threads or sockets when it is imported, which do
    not survive a fork: workers import it themselves, after the fork."""

    preloaded: bool
    note: str
    seconds: float
    keepers: list[str] = msgspec.field(default_factory=list)
    """Entry points of handlers that keep their offsets themselves (`load_offsets`)."""


class TemplateFailed(Tagged, frozen=True):
    """The handler cannot be imported; the template exits."""

    error: str


class Fork(Tagged, frozen=True):
    """Fork one worker; the frame carries two descriptors: its channel and its ledger."""

    worker: int


class Forked(Tagged, frozen=True):
    """The worker's pid; the frame carries its pidfd."""

    pid: int


ToTemplate = Preload | Fork
FromTemplate = TemplateReady | TemplateFailed | Forked

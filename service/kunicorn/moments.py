"""Times as people say them on a command line. Pure; milliseconds since 1970."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from kunicorn.errors import ConfigError

_AGO = re.compile(r"(?P<count>\d+)(?P<unit>[smhd])")
_UNIT_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def moment(option: str, text: str, now_ms: int) -> int:
    """ "2026-01-31T12:00:00Z", "2026-01-31T13:00:00+01:00", or so long ago: "90s", "30m", "2h", "7d".

    Raises `ConfigError` naming the `option`.
    """
    if (ago := _AGO.fullmatch(text)) is not None:
        return now_ms - int(ago["count"]) * _UNIT_MS[ago["unit"]]
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        parsed = None
    if parsed is None or parsed.tzinfo is None:
        raise ConfigError(f"{option} {text!r} is neither a time with its zone (2026-01-31T12:00:00Z) nor an age (2h)")
    return int(parsed.astimezone(UTC).timestamp() * 1000)


def span(option: str, text: str) -> float:
    """Seconds in "90s", "30m", "2h", "7d". Raises `ConfigError` naming the `option`."""
    found = _AGO.fullmatch(text)
    if found is None or int(found["count"]) == 0:
        raise ConfigError(f"{option} {text!r} is no length of time; write it such as 90s, 30m, 2h or 7d")
    return int(found["count"]) * _UNIT_MS[found["unit"]] / 1000

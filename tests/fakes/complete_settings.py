"""Settings that are complete, for tests that are about some of them."""

from __future__ import annotations

from typing import Any

from kunicorn.settings import Settings


def tables_of(**sections: Any) -> dict[str, Any]:
    """These sections, with the least that has to be said besides: brokers that are nowhere, the group g, and a handler
    of the topic orders, as far as the sections leave room for them."""
    least: dict[str, dict[str, Any]] = {"kafka": {"bootstrap_servers": ["127.0.0.1:9"]}}
    if "assign" not in sections:
        least["group"] = {"id": "g"} if "handlers" in sections else {"id": "g", "topics": ["orders"]}
    if "handlers" not in sections:
        least["handler"] = {"entrypoint": "shop:handle"}
    return {**sections, **{name: {**section, **sections.get(name, {})} for name, section in least.items()}}


def settings_of(**sections: Any) -> Settings:
    """Settings with these sections, as `tables_of` completes them."""
    return Settings.model_validate(tables_of(**sections))

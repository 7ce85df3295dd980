"""`python -m kunicorn.settings`: writes what is generated from the settings, docs and the Helm chart's part; run in the
repository's root. The entry point alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from kunicorn.settings.generate.chart import settings_defaults, values_schema
from kunicorn.settings.generate.pages import example, page

FILES: Mapping[str, Callable[[], str]] = {
    "config.example.toml": example,
    "docs/settings.md": page,
    "deploy/helm/values.schema.json": values_schema,
    "deploy/helm/settings-defaults.json": settings_defaults,
}

for name, content in FILES.items():
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content())

"""Write config.example.toml and docs/settings.md; run in the repository's root."""

from __future__ import annotations

from pathlib import Path

from kunicorn.settings.render import example, page

Path("config.example.toml").write_text(example())
Path("docs").mkdir(exist_ok=True)
Path("docs/settings.md").write_text(page())

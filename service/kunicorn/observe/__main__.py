"""Write docs/metrics.md from the catalogue; run in the repository's root."""

from __future__ import annotations

from pathlib import Path

from kunicorn.observe.pages import metrics_page

Path("docs").mkdir(exist_ok=True)
Path("docs/metrics.md").write_text(metrics_page())

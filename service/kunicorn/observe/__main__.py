"""Write docs/metrics.md and docs/states.md from the code; run in the repository's root."""

from __future__ import annotations

from pathlib import Path

from kunicorn.observe.diagrams import states_page
from kunicorn.observe.pages import metrics_page

Path("docs").mkdir(exist_ok=True)
Path("docs/metrics.md").write_text(metrics_page())
Path("docs/states.md").write_text(states_page())

"""`python -m kunicorn.observe`: writes docs/metrics.md, docs/states.md and the chart's dashboard from the code; run in
the repository's root. The entry point alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from kunicorn.observe.generate import dashboard, fleet_dashboard, metrics_page, states_page

FILES: Mapping[str, Callable[[], str]] = {
    "docs/metrics.md": metrics_page,
    "docs/states.md": states_page,
    "deploy/helm/dashboards/kunicorn.json": dashboard,
    "deploy/helm/dashboards/kunicorn-fleet.json": fleet_dashboard,
}

for name, content in FILES.items():
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content())

"""The site: `make docs-site` builds it from the Markdown of this repository, and fails for a link that leads nowhere.

Sphinx is run with the repository as its source, so that the pages' links to one another and to examples hold
on the site as they do in a checkout. The pages stay plain Markdown: what only Sphinx understands is added here.
"""

import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "service"))

import kunicorn  # noqa: E402
import kunicorn.pipeline  # noqa: E402
import kunicorn.testing  # noqa: E402

project = "kunicorn"
release = kunicorn.__version__
html_title = f"kunicorn {release}"
html_theme = "furo"
html_copy_source = False
root_doc = "README"
include_patterns = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "docs/**.md"]
exclude_patterns = [".*", "bench", "build", "deploy", "dist", "examples", "reports", "service", "tests"]
extensions = ["myst_parser", "sphinx.ext.autodoc"]
myst_heading_anchors = 5
# README's pictures and pages stand in docs/; GitHub's and Sphinx's anchors are the same.
suppress_warnings = ["myst.header", "misc.highlighting_failure"]
default_role = "literal"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
python_use_unqualified_type_names = True

NAVIGATION = {
    "Learn": ["tutorial/README", "tutorial/[0-9]*", "cookbook/README", "cookbook/*"],
    "Handlers": [
        "handlers",
        "decoding",
        "columns",
        "failures",
        "filters",
        "concurrency",
        "exactly-once",
        "testing",
        "groups",
        "pipeline",
        "clusters",
    ],
    "Operate": [
        "operations",
        "security",
        "tracing",
        "otlp",
        "runbooks/README",
        "runbooks/*",
        "compatibility",
    ],
    "Look up": ["faq", "commands", "settings", "reference", "metrics", "states", "glossary", "[!_]*"],
    "Understand": [
        "compared",
        "promises",
        "architecture",
        "delivery",
        "soak",
        "conformance",
        "incidents",
        "benchmarks",
    ],
    "Come from elsewhere": ["migration/*"],
}
"""Headings of the site's menu, and the pages below each. The last pattern of *Look up* finds what none names."""

REFERENCE = {
    "kunicorn": kunicorn.__all__,
    "kunicorn.testing": kunicorn.testing.__all__,
    "kunicorn.pipeline": kunicorn.pipeline.__all__,
}


def menu() -> str:
    """Table of contents for the front page, in MyST's notation."""
    pages = {path.relative_to(ROOT / "docs").with_suffix("").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    named = {name for patterns in NAVIGATION.values() for name in patterns if name in pages}
    parts, placed = [], set[str]()
    for heading, patterns in NAVIGATION.items():
        entries = []
        for pattern in patterns:
            matching = sorted(
                page for page in pages if Path(page).match(pattern) and page.count("/") == pattern.count("/")
            )
            entries += [page for page in matching if page not in placed and (page == pattern or page not in named)]
            placed.update(entries)
        listed = "\n".join(f"docs/{entry}" for entry in entries)
        parts.append(f"```{{toctree}}\n:hidden:\n:caption: {heading}\n\n{listed}\n```\n")
    more = [name for name in ("CHANGELOG", "CONTRIBUTING", "SECURITY") if (ROOT / f"{name}.md").exists()]
    parts.append("```{toctree}\n:hidden:\n:caption: The project\n\n" + "\n".join(more) + "\n```\n")
    return "\n".join(parts)


def signatures() -> str:
    """Every public name with its signature and docstring, by autodoc."""
    parts = []
    for package, names in REFERENCE.items():
        parts.append(f"## {package}\n")
        for name in names:
            kind = "autoclass" if isinstance(getattr(sys.modules[package], name), type) else "autofunction"
            members = "   :members:\n" if kind == "autoclass" else ""
            parts.append(f"### {package}.{name}\n\n```{{eval-rst}}\n.. {kind}:: {package}.{name}\n{members}```\n")
    return "\n".join(parts)


def _add(_app: Any, page: str, source: list[str]) -> None:
    if page == root_doc:
        source[0] += "\n" + menu()
    if page == "docs/reference":
        source[0] += "\n" + signatures()


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("source-read", _add)

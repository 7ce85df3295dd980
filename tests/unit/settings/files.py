"""Settings files for tests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from kunicorn.errors import ConfigError
from kunicorn.settings import Settings, load

LEAST = """
[kafka]
bootstrap_servers = ["127.0.0.1:9092"]
[group]
id = "orders"
topics = ["orders"]
[handler]
entrypoint = "shop.handlers:handle_order"
"""


def cgroup_files(tmp_path: Path, membership: str, files: Mapping[str, str]) -> tuple[Path, Path]:
    """Directories that stand for /proc and /sys/fs/cgroup of a machine with these cgroup files."""
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "self" / "cgroup").write_text(membership)
    for name, text in files.items():
        path = tmp_path / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "proc", tmp_path / "cgroup"


def loaded(tmp_path: Path, text: str = LEAST, environ: Mapping[str, str] | None = None) -> Settings:
    """The settings in `text`, with those of `environ` over them."""
    path = tmp_path / "config.toml"
    path.write_text(text)
    return load(path, environ or {})


def problems(tmp_path: Path, text: str = LEAST, environ: Mapping[str, str] | None = None) -> list[str]:
    """The lines of the refusal, without its head."""
    with pytest.raises(ConfigError) as refused:
        loaded(tmp_path, text, environ)
    return [line.strip() for line in str(refused.value).splitlines()[1:]]


def problem(tmp_path: Path, section: str, line: str) -> str:
    """The only problem of settings that are complete, but for one line added in that section."""
    name = line.partition("=")[0].strip()
    kept = [each for each in LEAST.splitlines() if not each.startswith(f"{name} =")]
    text = "\n".join(kept) + "\n"
    head = f"[{section}]\n"
    text = text.replace(head, f"{head}{line}\n") if head in text else f"{text}{head}{line}\n"
    (only,) = problems(tmp_path, text)
    return only

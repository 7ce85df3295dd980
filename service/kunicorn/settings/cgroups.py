"""What the kernel's control groups say of this process. Files that are missing or say nonsense say nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

UNLIMITED = "max"


def ancestry(mount: Path, name: str) -> Iterator[Path]:
    """The folders of the cgroup `name` and of those above it, up to the mount."""
    # In a cgroup namespace of its own a container sees "/"; without one, a path of the host that is not mounted
    # here: then only the mount itself exists, and it is the container's own group.
    own = PurePosixPath(name.strip().lstrip("/"))
    if ".." not in own.parts:
        for step in (own, *own.parents):
            yield mount / step


def lines(file: Path) -> list[str]:
    """The file's lines; none where it cannot be read."""
    try:
        return file.read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return []

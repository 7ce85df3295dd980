"""`kunicorn run --reload`: the handler's source and the settings' file are looked at, and a change is a reload."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib.machinery import PathFinder
from pathlib import Path

from kunicorn.observe import logs

log = logs.get("kunicorn.reload")

_INTERVAL = 0.5
_MOST_FILES = 10_000

Signature = dict[Path, tuple[int, int]]
"""Modification time and size of each file."""


async def watch(places: Sequence[Path], reload: Callable[[], None]) -> None:
    """Call `reload` whenever a file there was changed, added or removed, once it has been still for a moment: editors
    write in several steps. For ever."""
    known = await asyncio.to_thread(signature, places)
    log.info(f"watching {len(known)} files for changes: {', '.join(map(str, places))}")
    while True:
        await asyncio.sleep(_INTERVAL)
        now = await asyncio.to_thread(signature, places)
        if now == known:
            continue
        await asyncio.sleep(_INTERVAL)
        settled = await asyncio.to_thread(signature, places)
        if settled == now:
            log.info(f"changed: {', '.join(str(path) for path in _different(known, now))}; reloading")
            known = now
            reload()


def places_of(entrypoints: Iterable[str], config: Path) -> list[Path]:
    """The settings' file, and the handlers' top packages or modules. Imports nothing."""
    names = dict.fromkeys(entrypoint.partition(":")[0].partition(".")[0] for entrypoint in entrypoints)
    return [config, *(place for name in names for place in _places_of(name))]


def _places_of(name: str) -> list[Path]:
    # The current directory first, as the template has it.
    spec = PathFinder.find_spec(name, [str(Path.cwd()), *sys.path])
    if spec is None:
        return []
    directories = list(spec.submodule_search_locations or ())
    files = [spec.origin] if spec.origin is not None and not directories else []
    return [*map(Path, (*directories, *files))]


def signature(places: Iterable[Path]) -> Signature:
    """What the files are like now. Blocks on the disk."""
    found: Signature = {}
    for place in places:
        for path in place.rglob("*.py") if place.is_dir() else [place]:
            try:
                stat = path.stat()
            except OSError:
                continue  # Removed while we looked, or an editor is about to rename its new file here.
            found[path] = (stat.st_mtime_ns, stat.st_size)
            if len(found) >= _MOST_FILES:
                return found
    return found


def _different(before: Signature, now: Signature) -> list[Path]:
    return sorted(path for path in before.keys() | now.keys() if before.get(path) != now.get(path))[:5]

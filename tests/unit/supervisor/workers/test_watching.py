"""Files that are looked at for changes."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kunicorn.supervisor.workers import rolling
from kunicorn.supervisor.workers.rolling import Signature, places_of, signature, watch
from tests.fakes.driver import until


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package `shop_watched` beside a module `alone_watched`; both importable, neither imported."""
    package = tmp_path / "shop_watched"
    (package / "deep").mkdir(parents=True)
    for name in ("__init__.py", "handlers.py", "deep/rules.py", "notes.txt"):
        (package / name).write_text("1\n")
    (tmp_path / "alone_watched.py").write_text("1\n")
    (tmp_path / "config.toml").write_text("1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_the_handlers_package_and_the_settings_are_watched_and_nothing_is_imported(shop: Path) -> None:
    config = shop / "config.toml"
    assert places_of(["shop_watched.handlers:handle"], config) == [config, shop / "shop_watched"]
    assert places_of(["alone_watched:handle"], config) == [config, shop / "alone_watched.py"]
    assert places_of(["not_there_at_all:handle"], config) == [config]
    assert "shop_watched" not in sys.modules
    names = {path.name for path in signature(places_of(["shop_watched.handlers:handle"], config))}
    assert names == {"config.toml", "__init__.py", "handlers.py", "rules.py"}


def test_a_directory_that_vanishes_while_it_is_looked_through_is_left_out(
    shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scandir = os.scandir

    def vanishing(path: str) -> Any:
        if Path(path).name == "deep":
            (shop / "shop_watched/deep/rules.py").unlink()
            (shop / "shop_watched/deep").rmdir()
        return scandir(path)

    monkeypatch.setattr(os, "scandir", vanishing)
    assert {path.name for path in signature([shop / "shop_watched"])} == {"__init__.py", "handlers.py"}


async def test_a_change_is_told_once_when_the_files_are_still_again(
    shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rolling, "_INTERVAL", 0.05)
    reloads: list[int] = []
    looks: list[int] = []
    changed = asyncio.Event()

    def look(places: Iterable[Path]) -> Signature:
        found = signature(places)
        looks.append(len(found))
        return found

    def reload() -> None:
        reloads.append(1)
        changed.set()

    monkeypatch.setattr(rolling, "signature", look)
    task = asyncio.create_task(watch([shop / "shop_watched"], reload))
    try:
        await until(lambda: len(looks) > 2)
        assert reloads == []
        changes: tuple[Callable[[], object], ...] = (
            partial((shop / "shop_watched/handlers.py").write_text, "22\n"),
            partial((shop / "shop_watched/new.py").write_text, "3\n"),
            (shop / "shop_watched/deep/rules.py").unlink,
        )
        for change in changes:
            changed.clear()
            change()
            await asyncio.wait_for(changed.wait(), 60)
        seen = len(looks)
        await until(lambda: len(looks) > seen + 2)
        assert len(reloads) == 3
    finally:
        task.cancel()

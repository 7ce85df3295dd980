"""A real PostgreSQL for tests, started by them; installed with apt where this may be done, as the brokers' Java is."""

from __future__ import annotations

import getpass
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.kafka.artifacts import install_with_apt

_PLACES = Path("/usr/lib/postgresql")
_ADVICE = "Install PostgreSQL (Debian: apt-get install postgresql)."


@contextmanager
def postgres() -> Iterator[str]:
    """A server that is gone when the block ends; gives the DSN of its database. It listens on a Unix socket alone."""
    own = programs()
    user = _user()
    directory = Path(tempfile.mkdtemp(prefix="kunicorn-postgres-", dir="/tmp"))
    try:
        shutil.chown(directory, user)
        data = directory / "data"
        _run(user, own / "initdb", "-D", data, "-U", "tests", "-A", "trust", "--no-sync")
        # Durability across a power cut is not what is tested here; across SIGKILL it is PostgreSQL's anyway.
        options = f"-c listen_addresses='' -k {directory} -c fsync=off"
        log = directory / "log"
        _run(user, own / "pg_ctl", "-D", data, "-w", "-l", log, "-o", options, "start")
        try:
            yield f"host={directory} user=tests dbname=postgres"
        finally:
            _run(user, own / "pg_ctl", "-D", data, "-m", "immediate", "stop")
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def programs() -> Path:
    """Where they are; the latest version."""
    found = sorted(_PLACES.glob("*/bin/initdb"), key=lambda path: float(path.parts[-3]))
    if not found:
        _install()
        found = sorted(_PLACES.glob("*/bin/initdb"))
    assert found, f"there is no initdb under {_PLACES}. {_ADVICE}"
    return found[-1].parent


def _install() -> None:
    may = os.geteuid() == 0 and shutil.which("apt-get") is not None
    assert may, f"there is no PostgreSQL. {_ADVICE}"
    complaint = install_with_apt("postgresql")
    assert not complaint, f"{complaint} {_ADVICE}"


def _user() -> str:
    """Whom it runs as: it refuses root."""
    if os.geteuid() != 0:
        return getpass.getuser()
    known = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in known else "nobody"


def _run(user: str, *command: object) -> None:
    other: dict[str, Any] = (
        {"user": user, "group": pwd.getpwnam(user).pw_gid, "extra_groups": []} if os.geteuid() == 0 else {}
    )
    # Not a pipe: the server keeps it open, and its end would never come.
    with tempfile.TemporaryFile() as said:
        words = list(map(str, command))
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, stdout=said, stderr=said, cwd="/tmp", check=False, **other
        )
        said.seek(0)
        assert done.returncode == 0, f"{command[0]} failed: {said.read().decode(errors='replace')[-2000:]}"

"""The contenders' own environments, made once and kept in the tests' cache. Exact versions: environments.toml."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tests.kafka.artifacts import cache_directory, locked

HERE = Path(__file__).parent
_INSTALL_SECONDS = 900.0


class Unavailable(Exception):
    """A contender cannot take part on this machine; the text says why."""


@cache
def pinned() -> dict[str, dict[str, Any]]:
    """environments.toml."""
    return tomllib.loads((HERE / "environments.toml").read_text())


def version_of(environment: str, package: str) -> str:
    """As it is pinned."""
    packages: list[str] = pinned()[environment]["packages"]
    return next(line.partition("==")[2] for line in packages if line.startswith(f"{package}=="))


def python_of(environment: str) -> Path:
    """The interpreter of that environment, which is made first if it is not there. Blocks; raises `Unavailable`."""
    wanted = pinned()[environment]
    home = _home(environment, f"{wanted} {sys.version}".encode())
    python = home / "bin" / "python"
    with locked(f"peers-{environment}"):
        if not (home / "complete").exists():
            shutil.rmtree(home, ignore_errors=True)
            _ran([_interpreter(wanted["python"]), "-m", "venv", str(home)])
            _ran([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *wanted["packages"]])
            (home / "complete").touch()
    return python


def franz_go() -> Path:
    """The Go program, built first if need be. Blocks; raises `Unavailable`."""
    sources = sorted((HERE / "franz-go").iterdir())
    program = _home("franz-go", b"".join(path.read_bytes() for path in sources)) / "consume"
    if shutil.which("go") is None:
        raise Unavailable("Go is not installed")
    with locked("peers-franz-go"):
        if not program.exists():
            program.parent.mkdir(parents=True, exist_ok=True)
            _ran(["go", "build", "-o", str(program), "."], HERE / "franz-go")
    return program


def franz_go_version() -> str:
    """As go.mod has it."""
    lines = (HERE / "franz-go" / "go.mod").read_text().splitlines()
    return next(line.split()[-1].removeprefix("v") for line in lines if "twmb/franz-go v" in line)


def _home(name: str, content: bytes) -> Path:
    return cache_directory() / "peers" / f"{name}-{hashlib.sha256(content).hexdigest()[:12]}"


def _interpreter(version: str) -> str:
    """A Python of that minor version: this one, one of the PATH, or one that pyenv has."""
    if sys.version_info[:2] == tuple(map(int, version.split("."))):
        return sys.executable
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    candidates = [f"python{version}", *map(str, sorted(pyenv.glob(f"{version}.*/bin/python")))]
    for candidate in filter(shutil.which, candidates):
        # pyenv puts a name on the PATH for every Python it has, which fails for those that are not switched on.
        if subprocess.run([candidate, "-c", ""], capture_output=True, check=False).returncode == 0:
            return candidate
    raise Unavailable(f"needs Python {version}, which is neither on the PATH nor among pyenv's")


def _ran(command: Sequence[str], directory: Path | None = None) -> None:
    try:
        done = subprocess.run(
            command, cwd=directory, capture_output=True, text=True, check=False, timeout=_INSTALL_SECONDS
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(f"`{' '.join(command[:4])} …` took longer than {_INSTALL_SECONDS:g} s") from None
    if done.returncode:
        complaint = (done.stderr.strip() or done.stdout.strip()).splitlines() or ["said nothing"]
        raise Unavailable(f"`{' '.join(command[:4])} …` failed: {complaint[-1][:200]}")

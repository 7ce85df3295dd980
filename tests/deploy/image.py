"""The image's steps without Docker: what a stage installs, built in a bare environment, and run as the container would
be: PID 1 of its own namespace, another user, a root file system that nobody can write to.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.deploy.charts import ROOT
from tests.kafka.artifacts import cache_directory
from tests.waiting import wait_until

DOCKERFILE = (ROOT / "Dockerfile").read_text()
UID = 10001
BARE = {"PATH": os.defpath + ":/usr/local/bin", "HOME": "/nonexistent"}


def context(directory: Path) -> Path:
    """What Docker would send to the build: the files that .dockerignore lets through."""
    allowed = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    for name in allowed:
        target = directory / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, target, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        else:
            shutil.copy2(ROOT / name, target)
    return directory


def build(home: Path, extra: str = "") -> Path:
    """The virtual environment of a stage in `home`, as the Dockerfile builds it, with nothing of this one in sight."""
    # The container's user walks down here.
    for each in (home, *home.parents[:3]):
        if each.owner() == home.owner() and each != Path("/tmp"):
            each.chmod(each.stat().st_mode | 0o055)
    source = context(home / "src")
    for copied in re.findall(r"^COPY (?!--)(.*) \S+$", DOCKERFILE, flags=re.MULTILINE):
        for name in copied.split():
            assert (source / name).exists(), f"{name} is copied, but .dockerignore leaves it out"
    environment = {**BARE, "PIP_CACHE_DIR": str(cache_directory() / "pip")}
    # A stage with an extra is built upon the one without.
    for more in ((), (extra,)) if extra else ((),):
        command = [str(source / "deploy/image/build.sh"), str(source), str(home / "kunicorn"), *more]
        done = subprocess.run(
            command, env=environment, cwd="/", capture_output=True, text=True, timeout=400, check=False
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("kunicorn ")
    return home


CONTAINER = f"""
mount --make-rprivate /
mount -t tmpfs -o mode=1777 tmpfs "$WRITABLE"
mount -o remount,bind,ro /
exec setpriv --reuid={UID} --regid={UID} --clear-groups --no-new-privs --bounding-set=-all "$@"
"""
"""What the kubelet and the runtime do with the chart's security contexts."""


@contextmanager
def container(image: Path, *arguments: str, cwd: Path, env: Mapping[str, str]) -> Iterator[tuple[int, Path]]:
    """`kunicorn ARGUMENTS` as PID 1, unprivileged, on a read-only root; yields its pid outside, and its log."""
    writable = cwd / "tmp"
    writable.mkdir(exist_ok=True)
    log = cwd / "container.log"
    unshare = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-euc", CONTAINER, "sh"]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*unshare, image / "kunicorn/bin/kunicorn", *arguments],
            env={**BARE, "WRITABLE": str(writable), "TMPDIR": str(writable), "PYTHONDONTWRITEBYTECODE": "1", **env},
            cwd=cwd,
            stdout=output,
            stderr=output,
            stdin=subprocess.DEVNULL,
        )
        try:
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
            pid = wait_until(lambda: children.read_text().split(), "the container's first process")[0]
            yield int(pid), log
        finally:
            process.kill()
            process.wait(10)

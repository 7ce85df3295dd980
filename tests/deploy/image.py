"""The image's steps without Docker: what a stage installs, built in a bare environment, and run as the container would
be: PID 1 of its own namespace, another user, a root file system that nobody can write to.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
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


def environment(image: Path, stage: str) -> dict[str, str]:
    """What the Dockerfile's ENV gives that stage, for the image that `build` has made there."""
    given = {"PATH": BARE["PATH"]}
    for each in ("runtime", stage):
        instructions = re.search(rf"^FROM \S+ AS {each}$(.*?)(?=^FROM |\Z)", DOCKERFILE, flags=re.MULTILINE | re.DOTALL)
        assert instructions is not None, each
        for block in re.findall(r"^ENV ((?:.*\\\n)*.*)$", instructions[1], flags=re.MULTILINE):
            given |= {
                name: value.replace("/opt/kunicorn", str(image / "kunicorn")).replace("$PATH", given["PATH"])
                for name, _, value in (each.partition("=") for each in block.replace("\\\n", " ").split())
            }
    return given


def build(home: Path, extra: str = "", upon: Path | None = None) -> Path:
    """The virtual environment of a stage in `home`, as the Dockerfile builds it, with nothing of this one in sight.
    `upon`: where the stage without an extra was built, which is not built once more."""
    source = context(home / "src")
    for copied in re.findall(r"^COPY (?!--)(.*) \S+$", DOCKERFILE, flags=re.MULTILINE):
        for name in copied.split():
            assert (source / name).exists(), f"{name} is copied, but .dockerignore leaves it out"
    # The stage that compiles: `make venv` has done the same.
    wheels = ROOT / "build/columns/wheels"
    if wheels.is_dir():
        shutil.copytree(wheels, source / "wheels")
    bare = {**BARE, "PIP_CACHE_DIR": str(cache_directory() / "pip")}
    # A stage with an extra is built upon the one without.
    steps = [[], [extra]] if extra else [[]]
    if upon is not None:
        shutil.copytree(upon / "kunicorn", home / "kunicorn", symlinks=True)
        del steps[0]
    for more in steps:
        command = [str(source / "deploy/image/build.sh"), str(source), str(home / "kunicorn"), *more]
        done = subprocess.run(command, env=bare, cwd="/", capture_output=True, text=True, timeout=400, check=False)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("kunicorn ")
    return home


CONTAINER = f"""
mount --make-rprivate /
mount -t tmpfs -o mode=1777 tmpfs /mnt
for each in $BROUGHT; do
    mkdir -p "/mnt${{each#$TEMPORARY}}"
    mount --bind "$each" "/mnt${{each#$TEMPORARY}}"
    mount -o remount,bind,ro "/mnt${{each#$TEMPORARY}}"
done
mount --bind "$PASSWD" /etc/passwd
mount --move /mnt "$TEMPORARY"
test "$TEMPORARY" = /tmp || mount -t tmpfs -o mode=1777 tmpfs /tmp
mount -o remount,bind,ro /
cd "$PWD"
unset BROUGHT TEMPORARY PASSWD OLDPWD
exec setpriv --reuid={UID} --regid={UID} --clear-groups --no-new-privs --bounding-set=-all "$@"
"""
"""What the kubelet and the runtime do with the chart's security contexts: only /tmp can be written to, and is empty but
for what is brought along, at the place that it had. There pytest's own directories are in nobody's way: those on the
disk are closed to other users, again by every run that starts. The user has the name and home of the image's."""


def _passwd(directory: Path) -> Path:
    """The image's own: /etc/passwd with the user that the Dockerfile adds."""
    added = re.search(r"useradd --uid (\d+) --gid (\d+) --no-create-home --home-dir (\S+) (\S+)", DOCKERFILE)
    assert added is not None
    uid, gid, home, name = added.groups()
    file = directory / "passwd"
    file.write_text(f"{Path('/etc/passwd').read_text()}{name}:x:{uid}:{gid}::{home}:/bin/sh\n")
    return file


@contextmanager
def container(
    image: Path,
    *arguments: str,
    cwd: Path,
    env: Mapping[str, str],
    stage: str = "service",
    brought: Sequence[Path] = (),
) -> Iterator[tuple[int, Path]]:
    """`kunicorn ARGUMENTS` as PID 1, unprivileged, on a read-only root; yields its pid outside, and its log.

    `cwd` is there to be read, and so is what is `brought` beside the image.
    """
    log = cwd / "container.log"
    unshare = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-euc", CONTAINER, "sh"]
    own = {
        "PASSWD": str(_passwd(cwd)),
        "BROUGHT": " ".join(map(str, (image / "kunicorn", cwd, *brought))),
        "TEMPORARY": "/tmp" if cwd.is_relative_to("/tmp") else tempfile.gettempdir(),
    }
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*unshare, image / "kunicorn/bin/kunicorn", *arguments],
            env={**environment(image, stage), "HOME": "/tmp", **env, **own},
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
            process.wait(60)

"""What a run is told, by options and by the variables that make hands on; and where it was."""

from __future__ import annotations

import argparse
import os
import platform
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path

from kunicorn import __version__
from tests import checkout
from tests.deploy.tools import tools
from tests.kubernetes.brokers import Brokers, GivenBrokers
from tests.kubernetes.cluster import Cluster, NoCluster, connect
from tests.kubernetes.scene import Given, Image


def played(
    choices: Collection[str],
    description: str | None,
    name: str,
    play: Callable[[argparse.Namespace, Given, Path], bool],
) -> int:
    """Exit code of a run: 0 where `play` says that all has held, and where there is no cluster. `play` gets the
    options, of which `choices` are what may be played, what to play with, and a directory that stays."""
    options = parsed(choices, description)
    # Brokers are children of ours: an end by SIGTERM has to run the `finally` blocks that end them.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        cluster = connect(tools())
    except NoCluster as none:
        print(f"skipped: {none}")
        return 0
    directory = Path(tempfile.mkdtemp(prefix=f"kunicorn-{name}-"))
    tell(f"settings, audits and logs: {directory}")
    with given(options, cluster) as what:
        return 0 if play(options, what, directory) else 1


@contextmanager
def given(options: argparse.Namespace, cluster: Cluster) -> Iterator[Given]:
    """What scenarios play with; brokers of our own live as long as the block."""

    def image(reference: str) -> Image | None:
        return Image(reference) if reference else None

    more = (Image(options.image), image(options.old_image), options.old_commit, image(options.pipeline_image))
    if options.brokers:
        yield Given(cluster, GivenBrokers(options.brokers), options.host, *more)
        return
    with Brokers(options.host) as brokers:
        yield Given(cluster, brokers, options.host, *more)


def conditions(cluster: Cluster, options: argparse.Namespace) -> dict[str, str]:
    """Where it was measured, and what."""
    nodes = [node["status"]["nodeInfo"] for node in cluster.nodes()]
    linux = platform.release().partition("-")[0]
    cgroups = "v2" if Path("/sys/fs/cgroup/cgroup.controllers").exists() else "v1"
    runtimes = sorted({each["containerRuntimeVersion"].replace("://", " ") for each in nodes})
    commit = f"{checkout.commit()}{' and changes' if checkout.changed('service', 'deploy') else ''}"
    return {
        "date": f"{date.today():%Y-%m-%d}",
        "kubernetes": cluster.version(),
        "nodes": f"{len(nodes)} node{'s' if len(nodes) > 1 else ''}, {', '.join(runtimes)}",
        "machine": f"{os.cpu_count()} processors shared by brokers, pods and all else, Linux {linux}, cgroup {cgroups}",
        "commit": options.commit or commit,
    }


def tell(line: str) -> None:
    """To whoever watches the run."""
    print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)


def parsed(choices: Collection[str], description: str | None) -> argparse.Namespace:
    """Options, each with a variable of the environment that make hands on."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument(
        "--image", default=_of("IMAGE", f"kunicorn:{__version__}"), help="of the service, as the nodes know it"
    )
    parser.add_argument("--commit", default=_of("COMMIT"), help="which it was built of; else the checkout's")
    parser.add_argument("--host", default=_of("HOST", "127.0.0.1"), help="this machine's address, as pods reach it")
    parser.add_argument("--brokers", default=_of("BROKERS"), help="host:port; empty: a broker is started on --host")
    parser.add_argument("--old-image", default=_of("OLD_IMAGE"), help="of an older commit")
    parser.add_argument("--old-commit", default=_of("OLD_COMMIT"), help="which that was built of")
    parser.add_argument("--pipeline-image", default=_of("PIPELINE_IMAGE"), help="of the target pipeline")
    parser.add_argument("--only", nargs="*", choices=choices, default=_of("ONLY").split(), help="only these")
    parser.add_argument("--write", action="store_true", help="write the figures and docs/operations.md")
    return parser.parse_args()


def _of(variable: str, otherwise: str = "") -> str:
    return os.environ.get(variable) or otherwise

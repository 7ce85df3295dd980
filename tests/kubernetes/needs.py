"""What a scenario needs beside a cluster, and how that is found out."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from enum import Enum
from pathlib import Path

from tests.kubernetes.brokers import Brokers
from tests.kubernetes.scene import Given


class Need(Enum):
    """The value is what a page and a run say is missing."""

    BROKERS = "brokers that the run may stop (HOST= instead of BROKERS=)"
    PROCESSES = "the node's processes in sight, as root"
    SPARK = "an image of the target `pipeline` (PIPELINE_IMAGE=)"
    OLD_IMAGE = "an image of an older commit (OLD_IMAGE=, OLD_COMMIT=)"


def missing(needs: Collection[Need], given: Given) -> list[Need]:
    """Those that are not there, in the order of `Need`."""
    return [need for need in Need if need in needs and not _FOUND[need](given)]


def _sees_processes(given: Given) -> bool:
    """The kubelet of the node in the same process namespace."""
    names = {node["metadata"]["name"] for node in given.cluster.nodes()}
    if os.geteuid() != 0:
        return False
    for line in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = line.read_bytes().split(b"\0")
        except OSError:
            continue
        if words[0].endswith(b"kubelet") and any(
            word.endswith(f"={name}".encode()) for word in words for name in names
        ):
            return True
    return False


_FOUND: Mapping[Need, Callable[[Given], bool]] = {
    Need.BROKERS: lambda given: isinstance(given.brokers, Brokers),
    Need.PROCESSES: _sees_processes,
    Need.SPARK: lambda given: given.pipeline_image is not None,
    Need.OLD_IMAGE: lambda given: given.old_image is not None and bool(given.old_commit),
}

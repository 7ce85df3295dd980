"""A YARN of one node for tests: ResourceManager and NodeManager as processes of their own, on a file system of this
machine instead of HDFS.
"""

from __future__ import annotations

import json
import os
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from tests.kafka.artifacts import SLF4J, find_java, jars_of
from tests.kafka.ports import kept_ports
from tests.waiting import wait_until

HADOOP = "3.4.1"
_JARS = (
    ("org.apache.hadoop", "hadoop-client-minicluster", HADOOP),
    ("org.slf4j", "slf4j-simple", SLF4J),
    # What Hadoop's shaded jars name and do not bring.
    ("ch.qos.reload4j", "reload4j", "1.2.26"),
    ("org.glassfish.jaxb", "jaxb-runtime", "2.3.9"),
    ("org.bouncycastle", "bcpkix-jdk18on", "1.78.1"),
)
_OPTIONS = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "--add-opens=java.base/java.lang=ALL-UNNAMED")
"""Its web interface makes classes in a way that Java 17 has closed."""
_YARN = "org.apache.hadoop.yarn.server"
_MEMORY_MB, _CORES = 6144, 6
_START_SECONDS = 180.0


@contextmanager
def yarn_served(directory: Path) -> Iterator[Mapping[str, str]]:
    """A YARN while the block runs: the environment in which `spark-submit --master yarn` finds it. Its logs, and those
    of the containers, are in `directory`.
    """
    java, jars = find_java().command, jars_of("yarn", HADOOP, _JARS)
    configured, web = _configured(directory)
    classpath = os.pathsep.join([str(configured), *map(str, sorted(jars.glob("*.jar")))])
    with ExitStack() as started:
        for name in ("resourcemanager.ResourceManager", "nodemanager.NodeManager"):
            log = started.enter_context((directory / f"{name.rpartition('.')[2]}.log").open("w"))
            process = subprocess.Popen(
                [java, *_OPTIONS, "-cp", classpath, f"{_YARN}.{name}"],
                stdout=log,
                stderr=log,
                # Containers get what their NodeManager has: a Java, and no search path of this checkout.
                env={**os.environ, "PYTHONPATH": "", "HADOOP_CONF_DIR": str(configured)},
                start_new_session=True,
            )
            started.callback(process.wait, 60)
            started.callback(process.terminate)
        wait_until(lambda: _nodes(web) == 1, "a node of YARN", _START_SECONDS, every=0.5)
        yield {"HADOOP_CONF_DIR": str(configured), "YARN_CONF_DIR": str(configured)}


def attempts(environment: Mapping[str, str]) -> int:
    """How many times the driver of the newest application was started: each attempt's containers have its number."""
    logs = Path(environment["YARN_CONF_DIR"]).parent / "containers"
    newest = max(logs.glob("application_*"))
    return len({container.name.split("_")[3] for container in newest.glob("container_*")})


def _configured(directory: Path) -> tuple[Path, str]:
    """Where the settings are, and the address of the ResourceManager's web interface."""
    ports = [f"127.0.0.1:{port}" for port in kept_ports(8)]
    web = ports[4]
    settings = {
        "fs.defaultFS": "file:///",
        "hadoop.tmp.dir": directory / "tmp",
        "yarn.resourcemanager.address": ports[0],
        "yarn.resourcemanager.scheduler.address": ports[1],
        "yarn.resourcemanager.resource-tracker.address": ports[2],
        "yarn.resourcemanager.admin.address": ports[3],
        "yarn.resourcemanager.webapp.address": web,
        # The default one wants a file of queues.
        "yarn.resourcemanager.scheduler.class": f"{_YARN}.resourcemanager.scheduler.fifo.FifoScheduler",
        "yarn.scheduler.minimum-allocation-mb": 128,
        "yarn.nodemanager.hostname": "127.0.0.1",
        "yarn.nodemanager.address": ports[5],
        "yarn.nodemanager.localizer.address": ports[6],
        "yarn.nodemanager.webapp.address": ports[7],
        "yarn.nodemanager.local-dirs": directory / "local",
        "yarn.nodemanager.log-dirs": directory / "containers",
        "yarn.nodemanager.resource.memory-mb": _MEMORY_MB,
        "yarn.nodemanager.resource.cpu-vcores": _CORES,
        "yarn.nodemanager.pmem-check-enabled": "false",
        "yarn.nodemanager.vmem-check-enabled": "false",
        # A nearly full disk of a developer's is no reason to have no node.
        "yarn.nodemanager.disk-health-checker.enable": "false",
    }
    place = directory / "conf"
    place.mkdir(parents=True)
    properties = "".join(
        f"<property><name>{name}</name><value>{escape(str(value))}</value></property>"
        for name, value in settings.items()
    )
    for name in ("core-site.xml", "yarn-site.xml"):
        (place / name).write_text(f"<configuration>{properties}</configuration>")
    (place / "web").write_text(web)
    return place, web


def _nodes(web: str) -> int:
    try:
        return int(_asked(f"http://{web}/ws/v1/cluster/metrics")["activeNodes"])
    except OSError:
        return 0


def _asked(url: str) -> dict[str, Any]:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(urllib.request.Request(url, headers={"Accept": "application/json"}), timeout=60) as answer:
        told: dict[str, Any] = json.load(answer)
    return told

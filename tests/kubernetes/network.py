"""The scenario of the chart's NetworkPolicy. Small: it is the only one that asks the cluster's network to refuse."""

from __future__ import annotations

from tests.kubernetes.cluster import Cluster, Refused
from tests.kubernetes.release import Release
from tests.kubernetes.scene import Scene

_ENFORCE = ("calico", "cilium", "kindnet", "kube-router", "antrea", "weave")
"""Names of the DaemonSets of networks that enforce NetworkPolicy."""


def policed(scene: Scene) -> None:
    """The policy lets through brokers and what the handler asks for; and nothing else, where a network enforces it."""
    ports = [int(each.rpartition(":")[2]) for each in scene.given.brokers.for_pods.split(",")]
    collector = int(scene.collector.address.rpartition(":")[2])
    release = scene.installed(
        {
            "networkPolicy": {
                "enabled": True,
                "brokers": {"ports": ports},
                "ingressFrom": [{"namespaceSelector": {}}],
                "extraEgress": [{"ports": [{"port": collector, "protocol": "TCP"}]}],
            }
        }
    )
    if enforces(scene.cluster):
        assert not _reaches(release, 1), "the policy lets through what it does not name"
        scene.notes.append("enforced: what it does not name is shut out")
    else:
        scene.notes.append("**not enforced**: this network knows no NetworkPolicy, so nothing was shut out")


def enforces(cluster: Cluster) -> bool:
    """Whether the cluster's network shuts out what policies do not name."""
    sets = cluster.objects("daemonsets", "kube-system")
    return any(name in each["metadata"]["name"] for each in sets for name in _ENFORCE)


def _reaches(release: Release, port: int) -> bool:
    """Whether a pod gets an answer from that port of the API server's address, a refusal too."""
    code = f"import socket; socket.create_connection(('10.96.0.1', {port}), 3)"
    try:
        release.execute(release.names()[0], "python", "-c", code)
    except Refused as error:
        return "refused" in str(error).lower()
    return True

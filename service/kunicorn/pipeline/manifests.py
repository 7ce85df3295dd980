"""`kunicorn pipeline manifest`: a job as a spark-submit line, a plain Kubernetes Job, or a SparkApplication. Pure.

One image for all of them: the worker's with a Java and kunicorn's extra `pipeline`. The settings file is a ConfigMap
mounted under one path in driver and executors; secrets are one Secret, in the environment of both, never in an
argument.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kunicorn.errors import ConfigError

SPARK_VERSION = "4.2.0"
_MOUNT = "/etc/kunicorn"
_ENTRY = "local:///usr/local/lib/python3.11/site-packages/kunicorn/__main__.py"


@dataclass(frozen=True, slots=True)
class Cluster:
    """Namespace, image and other objects that the job runs with; they exist already."""

    name: str
    namespace: str
    image: str
    config_map: str
    secret: str | None
    service_account: str
    executors: int
    arguments: Sequence[str]
    """Of `kunicorn`: `pipeline backfill …`, with the settings file as it is mounted."""


Yaml = dict[str, Any]


def spark_submit(cluster: Cluster) -> str:
    """The spark-submit line; its driver runs in the cluster, too."""
    conf = {
        "spark.kubernetes.namespace": cluster.namespace,
        "spark.kubernetes.container.image": cluster.image,
        "spark.kubernetes.authenticate.driver.serviceAccountName": cluster.service_account,
        "spark.executor.instances": str(cluster.executors),
        "spark.speculation": "false",
        **{name: value for role in ("driver", "executor") for name, value in _given(cluster, role)},
    }
    lines = ["spark-submit --master k8s://https://kubernetes.default.svc --deploy-mode cluster"]
    lines += [f"--name {cluster.name}", *(f"--conf {shlex.quote(f'{name}={value}')}" for name, value in conf.items())]
    return " \\\n  ".join([*lines, f"{_ENTRY} {shlex.join(cluster.arguments)}"]) + "\n"


def _given(cluster: Cluster, role: str) -> Iterator[tuple[str, str]]:
    """Settings file and secrets, as Spark on Kubernetes mounts them."""
    yield f"spark.kubernetes.{role}.volumes.configMap.settings.mount.path", _MOUNT
    yield f"spark.kubernetes.{role}.volumes.configMap.settings.options.name", cluster.config_map
    if cluster.secret is not None:
        yield f"spark.kubernetes.{role}.secretKeyRef.KUNICORN_KAFKA__SASL_PASSWORD", f"{cluster.secret}:sasl-password"


def job(cluster: Cluster) -> Yaml:
    """A plain Job with Spark in the one pod: `--master local[*]`."""
    container: Yaml = {
        "name": "kunicorn",
        "image": cluster.image,
        "args": list(cluster.arguments),
        "env": _environment(cluster),
        "volumeMounts": [{"name": "settings", "mountPath": _MOUNT, "readOnly": True}],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    pod = {"restartPolicy": "Never", "containers": [container], "volumes": [_volume(cluster)]}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": _metadata(cluster),
        # Not again by itself: a job says how to go on, and whether to is for a person.
        "spec": {"backoffLimit": 0, "template": {"spec": {**pod, "serviceAccountName": cluster.service_account}}},
    }


def kubeflow(cluster: Cluster) -> Yaml:
    """For the Kubeflow operator (`sparkoperator.k8s.io/v1beta2`)."""
    role: Yaml = {
        "cores": 1,
        "memory": "1g",
        "env": _environment(cluster),
        "volumeMounts": [{"name": "settings", "mountPath": _MOUNT, "readOnly": True}],
    }
    return {
        "apiVersion": "sparkoperator.k8s.io/v1beta2",
        "kind": "SparkApplication",
        "metadata": _metadata(cluster),
        "spec": {
            "type": "Python",
            "mode": "cluster",
            "sparkVersion": SPARK_VERSION,
            "image": cluster.image,
            "mainApplicationFile": _ENTRY,
            "arguments": list(cluster.arguments),
            "restartPolicy": {"type": "Never"},
            "sparkConf": {"spark.speculation": "false"},
            "volumes": [_volume(cluster)],
            "driver": {**role, "serviceAccount": cluster.service_account},
            "executor": {**role, "instances": cluster.executors},
        },
    }


def apache(cluster: Cluster) -> Yaml:
    """For Apache's own operator (`spark.apache.org/v1`)."""
    conf = {
        "spark.kubernetes.container.image": cluster.image,
        "spark.kubernetes.authenticate.driver.serviceAccountName": cluster.service_account,
        "spark.executor.instances": str(cluster.executors),
        "spark.speculation": "false",
        **{name: value for role in ("driver", "executor") for name, value in _given(cluster, role)},
    }
    return {
        "apiVersion": "spark.apache.org/v1",
        "kind": "SparkApplication",
        "metadata": _metadata(cluster),
        "spec": {
            "pyFiles": _ENTRY,
            "driverArgs": list(cluster.arguments),
            "sparkConf": conf,
            "runtimeVersions": {"sparkVersion": SPARK_VERSION},
        },
    }


def _metadata(cluster: Cluster) -> Yaml:
    labels = {"app.kubernetes.io/name": "kunicorn", "app.kubernetes.io/instance": cluster.name}
    return {"name": cluster.name, "namespace": cluster.namespace, "labels": labels}


def _environment(cluster: Cluster) -> list[Yaml]:
    if cluster.secret is None:
        return []
    reference = {"name": cluster.secret, "key": "sasl-password"}
    return [{"name": "KUNICORN_KAFKA__SASL_PASSWORD", "valueFrom": {"secretKeyRef": reference}}]


def _volume(cluster: Cluster) -> Yaml:
    return {"name": "settings", "configMap": {"name": cluster.config_map}}


_KINDS: Mapping[str, Callable[[Cluster], Yaml]] = {"job": job, "kubeflow": kubeflow, "apache": apache}
KINDS = ("submit", *_KINDS)


def rendered(kind: str, cluster: Cluster) -> str:
    """Text to apply or to run. Raises `ConfigError`."""
    if kind == "submit":
        return spark_submit(cluster)
    if kind not in _KINDS:
        raise ConfigError(f"--kind {kind!r} is none of {', '.join(KINDS)}; choose one")
    return "\n".join(_yaml(_KINDS[kind](cluster))) + "\n"


def arguments_of(command: Sequence[str], kind: str) -> list[str]:
    """Arguments of `kunicorn`: the job's own, the mounted settings and the master. Raises `ConfigError`."""
    if not command or command[0] not in {"backfill", "catch-up", "stream", "export"}:
        raise ConfigError("name the job behind --, such as: kunicorn pipeline manifest --image … -- backfill --from 7d")
    if taken := [each for each in command if each.partition("=")[0] in {"--config", "-c", "--master"}]:
        raise ConfigError(f"{taken[0]} is the manifest's to say; leave it out")
    # In a cluster the submission has said the master already; a session must not contradict it.
    master = ["--master", "local[*]"] if kind == "job" else ["--master", "submitted"]
    return ["pipeline", *command, "--config", f"{_MOUNT}/config.toml", *master]


def _yaml(value: Any, indent: str = "") -> Iterator[str]:
    """Lines in block style; strings as in JSON, which YAML reads."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _entry(f"{indent}{_key(key)}:", item, indent + "  ")
    else:
        for item in value:
            lines = list(_yaml(item, indent + "  ")) if isinstance(item, Mapping) else [f"{indent}  {json.dumps(item)}"]
            yield f"{indent}- {lines[0].lstrip()}"
            yield from lines[1:]


def _entry(head: str, item: Any, indent: str) -> Iterator[str]:
    if isinstance(item, Mapping | list) and item:
        yield head
        yield from _yaml(item, indent)
    else:
        yield f"{head} {json.dumps(item)}"


def _key(key: str) -> str:
    return key if key.replace(".", "").replace("/", "").replace("-", "").isalnum() else json.dumps(key)

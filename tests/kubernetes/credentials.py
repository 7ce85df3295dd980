"""Scenarios of Secrets that change under a running release; the brokers ask for what is new."""

from __future__ import annotations

import base64
import time
from functools import partial
from typing import Any

from tests.kafka.certificates import make_certificates
from tests.kafka.secured import PASSWORDS
from tests.kubernetes.brokers import SecuredBrokers
from tests.kubernetes.lifecycle import ON_DISK_WITHIN, wait_on_disk
from tests.kubernetes.release import WITHIN, Release
from tests.kubernetes.scene import Scene
from tests.waiting import wait_until

USER, NEXT_PASSWORD = "alice", "distinctive-tw1ce"
LOGIN, TLS, HTTP_TLS = "orders-kafka", "orders-kafka-tls", "orders-http-tls"


def installed_with_login(scene: Scene, brokers: SecuredBrokers) -> Release:
    """A release that logs in with a password, over TLS, by Secrets."""
    brokers.allow_group(USER, scene.topic)
    secret(scene, LOGIN, {"password": PASSWORDS[USER].encode()})
    secret(scene, TLS, {"ca.crt": brokers.certificates.ca.read_bytes()})
    login = {"security_protocol": "SASL_SSL", "sasl_mechanism": "SCRAM-SHA-512", "sasl_username": USER}
    auth = {"sasl": {"existingSecret": LOGIN}, "tls": {"existingSecret": TLS}}
    return scene.installed({"config": {"kafka": login}, "auth": auth})


def password_changed(scene: Scene) -> None:
    """The password is changed at the brokers and in the Secret; then the broker restarts, and every client logs in
    anew. No pod is restarted."""
    brokers = scene.given.brokers
    assert isinstance(brokers, SecuredBrokers)
    release = installed_with_login(scene, brokers)
    pods = release.names()
    brokers.set_password(USER, NEXT_PASSWORD)
    secret(scene, LOGIN, {"password": NEXT_PASSWORD.encode()})
    _in_pods(scene, release, "/etc/kunicorn/sasl/password", NEXT_PASSWORD)
    scene.hurts(*pods)
    brokers.broker(1).stop()
    brokers.broker(1).start()
    brokers.wait_until_ready(WITHIN)
    scene.wait_whole(2)
    scene.wait_handled_on()
    assert release.names() == pods, "a pod was replaced"
    assert release.restarts() == 0, "a container was restarted"


def certificate_changed(scene: Scene) -> None:
    """The Secret gets the certificate of another client. Workers are replaced for it; then the broker restarts, every
    client connects anew, and the first client's rights end. No pod is restarted."""
    brokers = scene.given.brokers
    assert isinstance(brokers, SecuredBrokers)
    files = brokers.certificates
    files.sign_client("client-2")
    for client in ("client", "client-2"):
        brokers.allow_group(f"CN={client}", scene.topic)

    def pair(client: str) -> dict[str, bytes]:
        return {
            "ca.crt": files.ca.read_bytes(),
            "tls.crt": files.certificate(client).read_bytes(),
            "tls.key": files.key(client).read_bytes(),
        }

    secret(scene, TLS, pair("client"))
    kafka = {"security_protocol": "SSL", "bootstrap_servers": [brokers.server("MTLS", brokers.host)]}
    auth = {"tls": {"existingSecret": TLS, "certKey": "tls.crt", "keyKey": "tls.key"}}
    release = scene.installed({"config": {"kafka": kafka}, "auth": auth})
    pods = release.names()
    workers = {pod: _workers(release, pod) for pod in pods}
    secret(scene, TLS, pair("client-2"))
    certificate = files.certificate("client-2").read_text().split()[-4]
    _in_pods(scene, release, "/etc/kunicorn/tls/tls.crt", certificate)
    for pod in pods:
        wait_until(partial(_all_others, release, pod, workers[pod]), f"{pod} to have replaced its workers", WITHIN, 1)
    scene.hurts(*pods)
    brokers.broker(1).stop()
    brokers.broker(1).start()
    brokers.wait_until_ready(WITHIN)
    brokers.forbid("CN=client")
    scene.wait_handled_on(300)
    scene.wait_whole(2)
    assert release.names() == pods, "a pod was replaced"
    assert release.restarts() == 0, "a container was restarted"


def _workers(release: Release, pod: str) -> set[int]:
    return {each["pid"] for each in release.status(pod)["workers"]}


def _all_others(release: Release, pod: str, before: set[int]) -> bool:
    """Whether all workers are others, and work."""
    status = release.status(pod)
    now = {each["pid"] for each in status.get("workers", [])}
    return bool(now) and None not in now and not now & before


def port_certificate_renewed(scene: Scene) -> None:
    """The HTTP port speaks TLS with a certificate of a Secret, is probed, and shows the next one when the Secret
    changes. No pod is restarted, and the commands in the pod believe both."""
    (scene.directory / "http").mkdir()
    made = make_certificates(scene.directory / "http", "unused")

    def pair(name: str) -> dict[str, bytes]:
        return {"tls.crt": made.certificate(name).read_bytes(), "tls.key": made.key(name).read_bytes()}

    secret(scene, HTTP_TLS, pair("server"))
    release = scene.installed({"auth": {"httpTls": {"existingSecret": HTTP_TLS}}})
    pods = release.names()
    began = time.monotonic()
    secret(scene, HTTP_TLS, pair("misnamed"))
    renewed = made.certificate("misnamed").read_text().split()
    for pod in pods:
        wait_until(partial(_shows, release, pod, renewed), f"the next certificate at {pod}", ON_DISK_WITHIN + WITHIN, 1)
        release.execute(pod, "kunicorn", "status")
    scene.notes.append(f"shown after {time.monotonic() - began:.0f} s")
    scene.wait_whole(2)
    assert release.names() == pods, "a pod was replaced"
    assert release.restarts() == 0, "a container was restarted"


def _shows(release: Release, pod: str, certificate: list[str]) -> bool:
    look = "import ssl; print(ssl.get_server_certificate(('127.0.0.1', 9400)))"
    return release.execute(pod, "python", "-c", look).split() == certificate


def secret(scene: Scene, name: str, data: dict[str, bytes]) -> None:
    """Make it, or change it."""
    packed = {key: base64.b64encode(value).decode() for key, value in data.items()}
    metadata: dict[str, Any] = {"name": name, "namespace": scene.namespace}
    scene.cluster.apply({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": packed})


def _in_pods(scene: Scene, release: Release, path: str, words: str) -> None:
    began = time.monotonic()
    for pod in release.names():
        wait_on_disk(release, pod, path, words)
    scene.notes.append(f"in the pods after {time.monotonic() - began:.0f} s")

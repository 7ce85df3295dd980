"""A cluster that clients reach over links of their own, which tests make slow, reset or cut; in clear or over TLS."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from kunicorn.commands.child import python_module, python_path, start_child
from kunicorn.kafka.versions import Api
from tests.kafka.access import ACCESS
from tests.kafka.certificates import make_certificates
from tests.kafka.cluster import KafkaCluster
from tests.kafka.properties import Node
from tests.kafka.scripted import Fault

Direction = Literal["to", "from"]
"""Towards the brokers, or from them."""
Security = Literal["PLAINTEXT", "SSL", "SASL_SSL"]
USER, _PASSWORD = "alice", "distinctive-l1nks"
_MECHANISM = "SCRAM-SHA-512"


class ProxiedCluster(KafkaCluster):
    """Who bootstraps from `bootstrap_over(link)` is told the brokers' addresses on that link, and no others.

    `bootstrap` is the way around all links, in clear and with every right. With SASL_SSL brokers ask for rights: give
    them to `USER` first. What is not in clear cannot be scripted.
    """

    def __init__(
        self,
        links: Sequence[str],
        brokers: int = 3,
        overrides: Mapping[str, object] | None = None,
        security: Security = "PLAINTEXT",
        **more: Any,
    ) -> None:
        if security == "SASL_SSL":
            more["format_arguments"] = [f"--add-scram={_MECHANISM}=[name={USER},password={_PASSWORD}]"]
        super().__init__(brokers, **more)
        self._security = security
        ports = iter(self.ports.take(2 * len(links) * brokers))
        self._doors = {(link, node.id): next(ports) for link in links for node in self._nodes}
        self._behind = {key: next(ports) for key in self._doors}
        self.links = tuple(links)
        listeners = {"PLAINTEXT": "PLAINTEXT", "CONTROLLER": "PLAINTEXT"} | {link.upper(): security for link in links}
        self._overrides = {
            "listeners": self._listeners,
            "advertised.listeners": self._advertised,
            "listener.security.protocol.map": ",".join(f"{name}:{protocol}" for name, protocol in listeners.items()),
            # Every listener has threads of its own.
            "num.network.threads": 1,
            **(overrides or {}),
        }
        self._proxy: subprocess.Popen[str] | None = None
        self._telling = threading.Lock()

    def bootstrap_over(self, link: str) -> list[str]:
        """Bootstrap servers on this link."""
        return [f"127.0.0.1:{self._doors[link, node.id]}" for node in self._nodes]

    @property
    def client_settings(self) -> dict[str, str]:
        """Of [kafka], for whoever comes over a link."""
        secured = {"security_protocol": self._security, "ssl_ca_location": str(self._secrets / "ca.pem")}
        login = {
            "sasl_mechanism": _MECHANISM,
            "sasl_username": USER,
            "sasl_password_file": str(self._secrets / "password"),
        }
        return {"PLAINTEXT": {}, "SSL": secured, "SASL_SSL": {**secured, **login}}[self._security]

    @property
    def _secrets(self) -> Path:
        return self.workdir / "secrets"

    def slow(self, link: str, seconds: float) -> None:
        """Everything on the link takes so much longer, in each direction."""
        self._tell("slow", link, str(seconds))

    def cut(self, link: str, *directions: Direction) -> None:
        """Nothing gets through; nobody is told."""
        self._tell("cut", link, *directions)

    def reset(self, link: str) -> None:
        """All its connections are reset; new ones may be made."""
        self._tell("reset", link)

    def script(self, link: str, api: Api, fault: Fault, times: int = 1) -> None:
        """The next requests of that API on the link get this fault; at `heal` the rest of them is forgotten."""
        self._tell("script", link, str(int(api)), fault.kind, str(fault.amount), str(times))

    def heal(self, link: str) -> None:
        """As good as new; what was held back arrives."""
        self._tell("heal", link)

    def start(self) -> None:
        """The links, then the brokers."""
        plan: dict[str, dict[int, int]] = {link: {} for link in self.links}
        for (link, node), door in self._doors.items():
            plan[link][door] = self._behind[link, node]
        self.workdir.mkdir(parents=True, exist_ok=True)
        if self._security != "PLAINTEXT":
            self._overrides |= self._secured()
        framed = "framed" if self._security == "PLAINTEXT" else "raw"
        command: list[str | Path] = [*python_module("tests.kafka.proxy"), json.dumps(plan), framed]
        self._proxy = start_child(command, env=python_path(), pipes=True, log=self.workdir / "proxy.txt")
        self._hear("ready")
        super().start()

    def close(self) -> None:
        """Everything is gone afterwards."""
        super().close()
        if self._proxy is not None:
            self._proxy.kill()
            self._proxy.wait(60)

    def _tell(self, *words: str) -> None:
        assert self._proxy is not None
        assert self._proxy.stdin is not None
        # Groups that are hurt at the same time have a thread each.
        with self._telling:
            self._proxy.stdin.write(" ".join(words) + "\n")
            self._proxy.stdin.flush()
            self._hear("done")

    def _hear(self, word: str) -> None:
        assert self._proxy is not None
        assert self._proxy.stdout is not None
        said = self._proxy.stdout.readline().strip()
        if said != word:
            raise RuntimeError(f"the proxy said {said!r} instead of {word!r}; see {self.workdir / 'proxy.txt'}")

    def _secured(self) -> dict[str, object]:
        self._secrets.mkdir(exist_ok=True)
        made = make_certificates(self._secrets, _PASSWORD)
        settings: dict[str, object] = {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": made.both("server"),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": made.ca,
        }
        if self._security == "SSL":
            return settings
        (self._secrets / "password").write_text(_PASSWORD)
        module = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        for link in self.links:
            settings[f"listener.name.{link}.sasl.enabled.mechanisms"] = _MECHANISM
            settings[f"listener.name.{link}.{_MECHANISM.lower()}.sasl.jaas.config"] = module
        return {**settings, **ACCESS}

    def _listeners(self, node: Node) -> str:
        own = [f"PLAINTEXT://127.0.0.1:{node.port}", f"CONTROLLER://127.0.0.1:{node.controller_port}"]
        return ",".join(own + [f"{link.upper()}://127.0.0.1:{self._behind[link, node.id]}" for link in self.links])

    def _advertised(self, node: Node) -> str:
        own = [f"PLAINTEXT://127.0.0.1:{node.port}"]
        return ",".join(own + [f"{link.upper()}://127.0.0.1:{self._doors[link, node.id]}" for link in self.links])

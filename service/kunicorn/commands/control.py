"""`kunicorn pause`, `resume`, `seek`, `recycle`, `reload`: asks a running service to act, over its HTTP port with its
token, or on the same machine over its local socket. Blocks for as long as the action takes.
"""

from __future__ import annotations

import getpass
import http.client
import json
import os
import platform
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from email.message import Message
from pathlib import Path
from typing import Any

from kunicorn.clients.http import elsewhere
from kunicorn.commands.status import address, in_words, opener_of, refuse_no_address, unreachable, whole
from kunicorn.errors import ConfigError
from kunicorn.observe import requests
from kunicorn.settings import Settings
from kunicorn.settings.security import token_content
from kunicorn.text import table

_SPARE = 30.0
"""Seconds beside those that the service may take to drain and to commit."""
_LONGEST_ANSWER = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class RunningService:
    """Address of a running service, and the token for it."""

    url: str
    token: str | None = field(repr=False)
    """None: it is asked on this machine, as its own user or as root (`kunicorn.observe.requests`)."""
    patience: float
    """Seconds."""
    port: int = 0
    """Of [http], where it is asked on this machine."""
    own_certificate: str | None = None
    """See `status.opener_of`."""
    workers: int = 1
    """A reload replaces one after the other, each as patiently as anything else is done."""
    start_seconds: float = 0.0
    """What each of them may take to start, and before them the import of the handler."""

    @classmethod
    def of(cls, settings: Settings, url: str | None, token_file: Path | None) -> RunningService:
        """The service with these settings, or at `url`. Raises `ConfigError` where it cannot be asked."""
        if token_file is not None:
            try:
                token = token_content(str(token_file)).get_secret_value()
            except ValueError as error:
                raise ConfigError(f"--token-file {str(token_file)!r} {error}") from error
        elif settings.http.acts:
            token = settings.http.secret_token()
        elif url is not None:
            raise ConfigError(
                f"at {url} the service takes orders with a token only: set http.token or http.token_file for it and "
                f"for this; on its own machine, as its user, none is needed, nor --url"
            )
        elif not settings.http.port:
            raise ConfigError("http.port = 0 takes any port: set one, so that the service can be found, or say --url")
        else:
            token = None
        waits = (settings.group.drain_timeout_ms + settings.group.commit_timeout_ms) / 1000 + _SPARE
        own_certificate = None if url is not None else settings.http.tls_certificate_file
        return cls(
            address(settings) if url is None else url.rstrip("/"),
            token,
            waits,
            settings.http.port,
            own_certificate,
            settings.workers.count,
            settings.workers.start_timeout_ms / 1000,
        )

    def patience_for(self, action: str) -> float:
        """Seconds until no answer is waited for any more."""
        return (self.patience + self.start_seconds) * (self.workers + 1) if action == "reload" else self.patience

    def ask(self, action: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """The answer: `ok`, `said`, and `partitions` of a seek. A refusal is an answer, too (409).

        Raises `ConfigError` where nothing answers, or a service that does not accept us.
        """
        if self.token is None:
            return self._ask_here(action, body)
        refuse_no_address(self.url)
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self.token}"}
        data = json.dumps({**body, "by": _who()}).encode()
        try:
            request = urllib.request.Request(f"{self.url}/actions/{action}", data, headers)  # noqa: S310 - just looked at
            with opener_of(self.own_certificate).open(request, timeout=self.patience_for(action)) as answer:
                return _read(self.url, whole(answer, _LONGEST_ANSWER), answer.status, answer.headers)
        except urllib.error.HTTPError as error:
            return self._refused(error)
        except urllib.error.URLError as error:
            raise unreachable(self.url, error) from error
        except TimeoutError as error:
            raise self._unanswered(self.url, action) from error
        except (ConnectionError, http.client.IncompleteRead) as error:
            raise _broken_off(self.url, error) from error
        except (OSError, http.client.HTTPException) as error:
            raise unreachable(self.url, error) from error
        except ValueError:
            # Of a header that cannot be sent, and then it quotes the token: neither its text nor its cause is shown.
            raise ConfigError(
                f"--url {self.url!r} is no address of a service, or the token is none of an HTTP header; correct them"
            ) from None

    def _refused(self, refusal: urllib.error.HTTPError) -> Mapping[str, Any]:
        """What a refusal says that is an answer; any other is raised as `ConfigError`."""
        if moved := elsewhere(refusal):
            raise ConfigError(f"{self.url} answers {refusal.code}: {moved}; correct --url") from refusal
        try:
            said = whole(refusal, _LONGEST_ANSWER)
        except (OSError, http.client.HTTPException) as error:
            raise _broken_off(self.url, error) from error
        refused = _read(self.url, said, refusal.code, refusal.headers)
        if refusal.code == 409:
            return refused
        raise ConfigError(f"{self.url} refuses: {refused['said']}") from refusal

    def _ask_here(self, action: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        connection = _Here(self.port, self.patience_for(action))
        headers = {"Content-Type": "application/json"}
        who = "One"
        try:
            connection.request("POST", f"/actions/{action}", json.dumps({**body, "by": _who()}), headers)
            who = "If it has ended just now, what was asked for may be done; one"
            answer = connection.getresponse()
            told = _read(self.url, whole(answer, _LONGEST_ANSWER), answer.status, answer.headers)
        except TimeoutError as error:
            raise self._unanswered("localhost", action) from error
        except http.client.IncompleteRead as error:
            raise _broken_off("localhost", error) from error
        except (OSError, http.client.HTTPException) as error:
            raise ConfigError(
                f"no service of this user with http.port = {self.port} answers on this machine: {error}; is it "
                f"running, in this container, as this user? {who} elsewhere is found by --url, and takes http.token"
            ) from error
        finally:
            connection.close()
        if answer.status not in {200, 409}:
            raise ConfigError(f"the service on this machine refuses: {told['said']}")
        return told

    def _unanswered(self, place: str, action: str) -> ConfigError:
        return ConfigError(
            f"the service at {place} has not answered within {self.patience_for(action):g} s: what was asked for may "
            f"be done yet; its log and `kunicorn status` say what comes of it"
        )


class _Here(http.client.HTTPConnection):
    """HTTP connection to the service on this machine, over its local socket."""

    def __init__(self, port: int, timeout: float) -> None:
        super().__init__("localhost", port, timeout=timeout)
        self._seconds = timeout

    def connect(self) -> None:
        self.sock = requests.connect(self.port, self._seconds)


def _broken_off(place: str, error: Exception) -> ConfigError:
    return ConfigError(
        f"the service at {place} has broken off before its answer was whole ({error}): what was asked for may be done "
        f"yet; its log and `kunicorn status` say what comes of it; where http.tls_… are set, it is https://"
    )


def _read(url: str, body: bytes, code: int, headers: Message) -> Mapping[str, Any]:
    try:
        found = json.loads(body)
    except ValueError:
        found = None
    if not isinstance(found, dict) or "said" not in found:
        if code >= 500:
            raise ConfigError(
                f"{url} answers {code}: what was asked for has failed, or may be done yet; the log of the service says "
                f"why, or that of what stands before it"
            )
        if words := in_words(headers, body):
            raise ConfigError(f"{url} answers {code}: {words}; correct --url")
        raise ConfigError(f"what answers at {url} is not kunicorn, or an older one; correct --url")
    return found


def _who() -> str:
    """The asking user, for the service's log."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):
        # A container's user need not have a name.
        user = f"uid {os.getuid()}"
    return f"{user}@{platform.node()}"[:200]


_HEAD = ("partition", "committed", "position", "then", "records", "log start", "log end", "note")


@dataclass(frozen=True, slots=True)
class Reply:
    """What the service answered: `ok`, `said`, and for a seek the move of each partition
    (`kunicorn.observe.requests.SeekMove`).
    """

    answer: Mapping[str, Any]
    further: str = ""
    """What to do next, for a person."""

    @property
    def ok(self) -> bool:
        return bool(self.answer["ok"])

    def lines(self) -> Iterator[str]:
        yield from table(_HEAD, map(_row, self.answer.get("partitions", ())))
        if self.ok:
            yield self.answer["said"]
            yield from [self.further] if self.further else []

    def as_json(self) -> Mapping[str, Any]:
        return self.answer


def _row(move: Mapping[str, Any]) -> tuple[str | int | None, ...]:
    name = f"{move['topic']}-{move['partition']}"
    if move["then"] < 0:
        return (name, move["committed"], move["position"], None, " ", None, None, move["problem"])
    place = (move["committed"], move["position"], move["then"])
    return (name, *place, _effect(move), move["log_start"], move["log_end"], move["problem"] or " ")


def _effect(move: Mapping[str, Any]) -> str:
    """Effect in offsets from the handler's current position; the committed one may be a little older."""
    if move["position"] is None:
        return " "
    count = move["then"] - move["position"]
    return "stays" if not count else f"{abs(count):,} {'skipped' if count > 0 else 'again'}"

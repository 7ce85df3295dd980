"""`kunicorn status`: the `/status` of a running service, asked over HTTP, for a terminal or a program."""

from __future__ import annotations

import http.client
import json
import ssl
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from email.message import Message
from typing import Any

from kunicorn.clients.http import elsewhere, opener
from kunicorn.errors import ConfigError
from kunicorn.settings import Settings
from kunicorn.settings.checks import http_parts
from kunicorn.text import duration, printable, table, tell

Told = Mapping[str, Any]
_TIMEOUT = 5.0
_LONGEST_ANSWER = 64 * 1024 * 1024
_LONGEST_WORDS = 200
_STRANGER = "another service, or an older one"
_CLEAR = "\x1b[H\x1b[2J\x1b[A"
"""Clears the screen, and takes back the line that saying it ends."""
_HERE = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}  # noqa: S104 - compared with, not listened on
"""This machine's own address, by what a service listens on everywhere: with `::` that is IPv6 alone."""


def address(settings: Settings) -> str:
    """URL of a service with these settings on this machine. Raises `ConfigError` where it cannot be known."""
    port = settings.http
    if not port.enabled:
        raise ConfigError("the service does not answer over HTTP: http.enabled is false")
    if port.port == 0:
        raise ConfigError(
            "http.port is 0: the service logs the port it took; say it with --url http://127.0.0.1:<port>"
        )
    host = _HERE.get(port.host, port.host)
    return f"{port.scheme}://[{host}]:{port.port}" if ":" in host else f"{port.scheme}://{host}:{port.port}"


def opener_of(own_certificate: str | None = None) -> urllib.request.OpenerDirector:
    """What asks a service on this machine, or a pod beside us: a proxy for the way out (http_proxy) would not find it.

    `own_certificate`: the file of http.tls_certificate_file. Whoever shows what is in it is believed, whatever name it
    is for: an address of this machine is in no certificate. Without, those are whom the system trusts (SSL_CERT_FILE
    names others), by the name in the URL.
    """
    trusted = ssl.create_default_context()
    if own_certificate is not None:
        trusted = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        trusted.check_hostname = False
        trusted.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        try:
            trusted.load_verify_locations(own_certificate)
        except OSError as error:
            raise ConfigError(f"http.tls_certificate_file = {own_certificate!r} cannot be read: {error}") from error
    return opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=trusted))


def unreachable(url: str, error: Exception) -> ConfigError:
    """Nothing answers at `url`, or nobody who is to be believed."""
    why = getattr(error, "reason", error)
    if isinstance(why, ssl.SSLCertVerificationError):
        return ConfigError(
            f"{url} shows a certificate that does not verify: {why.verify_message}; for a CA of your own set "
            f"SSL_CERT_FILE to its file; one that was just renewed is shown within ten seconds"
        )
    if isinstance(why, ssl.SSLError):
        return ConfigError(
            f"{url} does not speak TLS: {why.reason or why}; where http.tls_… are not set, it is http://"
        )
    return ConfigError(f"no service answers at {url}: {why}; is it running here? --url says another place")


def whole(answer: Any, most: int) -> bytes:
    """Body of an answer, or of an `HTTPError`. Raises `IncompleteRead` where the connection ended before the body's
    end: read up to `most`, Python's client takes that for the end.
    """
    body: bytes = answer.read(most)
    missing: int = getattr(answer, "length", None) or 0
    if missing and len(body) < most:
        raise http.client.IncompleteRead(body, missing)
    return body


def in_words(headers: Message, body: bytes) -> str:
    """What a refusal says that is plain text, such as that the service goes by no such name; empty for any other."""
    if not headers.get("Content-Type", "").startswith("text/plain"):
        return ""
    return printable(body.decode(errors="replace").partition("\n")[0])[:_LONGEST_WORDS]


def _words_of(refusal: urllib.error.HTTPError) -> str:
    try:
        return in_words(refusal.headers, refusal.read(_LONGEST_WORDS))
    except (OSError, http.client.HTTPException):
        return ""  # Who refuses is gone amid the words: the code says enough.


def refuse_no_address(url: str) -> None:
    """Raise `ConfigError` for what is no address of a service."""
    parts = http_parts(url)
    if parts is None or parts.port == 0:
        raise ConfigError(f"--url {url!r} is no address of a service; write it such as http://127.0.0.1:9400")


def ask(url: str, own_certificate: str | None = None) -> Told:
    """`/status` of the service at `url`. Blocks for seconds at most. `own_certificate`: see `opener_of`. Raises
    `ConfigError`.
    """
    refuse_no_address(url)
    try:
        with opener_of(own_certificate).open(f"{url.rstrip('/')}/status", timeout=_TIMEOUT) as answer:
            found = json.loads(whole(answer, _LONGEST_ANSWER))
    except urllib.error.HTTPError as error:
        what = elsewhere(error) or _words_of(error) or _STRANGER
        raise ConfigError(f"{url}/status answers {error.code}: {what}; correct --url") from error
    except (OSError, http.client.HTTPException) as error:
        raise unreachable(url, error) from error
    except ValueError as error:
        raise ConfigError(f"{url}/status is not kunicorn's: {error}; correct --url") from error
    if not isinstance(found, dict) or "partitions" not in found:
        raise ConfigError(f"{url}/status is not kunicorn's; correct --url")
    return found


def say_status(
    url: str, say: Callable[[str], None], *, every: float | None, as_json: bool, own_certificate: str | None = None
) -> None:
    """Print the status once, or `every` so many seconds until Ctrl-C; then as JSON one line each time. Blocks.
    `own_certificate`: see `opener_of`. Raises `ConfigError` where the first look is in vain. One that was answered may
    be restarting when a later look is: standard error is told of it once, and it is asked again.
    """
    before: Told | None = None
    answered = False
    while True:
        began = time.monotonic()
        try:
            now = ask(url, own_certificate)
        except ConfigError as error:
            if not answered:
                raise
            if before is not None:
                print(f"kunicorn: {error}. It is asked again", file=sys.stderr)
            before = None
        else:
            if every is not None and not as_json and sys.stdout.isatty():
                say(_CLEAR)
            tell(ServiceStatus(now, before), say, as_json=as_json, in_one_line=every is not None)
            before, answered = now, True
        if every is None:
            return
        time.sleep(max(0.0, began + every - time.monotonic()))


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    """A service's answer, with rates where there is one of `before`."""

    now: Told
    before: Told | None = None

    def lines(self) -> Iterator[str]:
        now = self.now
        yield from _head(now)
        yield ""
        yield from table(
            (
                "worker",
                "pid",
                "state",
                "partitions",
                "load",
                "handled",
                "per s",
                "restarts",
                "rss MB",
                "in hand",
                "for",
            ),
            [_worker(worker, rate) for worker, rate in zip(now["workers"], _rates(now, self.before), strict=True)],
        )
        yield ""
        yield from _partitions(now)

    def as_json(self) -> Told:
        return self.now


def _head(now: Told) -> Iterator[str]:
    lags = [p["lag"] for p in now["partitions"] if p["lag"] is not None]
    ages = [p["lag_seconds"] for p in now["partitions"] if p["lag_seconds"] is not None]
    yield f"{now['client_id']} {now['version']}, pid {now['pid']}, up {duration(now['uptime'])}" + (
        ", stopping" if now["stopping"] else ""
    )
    if problem := now["problem"] or now["outage"]:
        yield f"PROBLEM  {printable(problem)}"
    if (group := now["group"]) is not None:
        name = group["instance_id"] or group["member_id"] or "none yet"
        beat = duration(group["heartbeat_age"])
        yield (
            f"group    {group['group_id']}: {group['state']}, generation {group['generation']}, member {name}, "
            + (f"last heartbeat {beat} ago" if beat is not None else "no heartbeat yet")
        )
        for rebalance in group["last_rebalances"][-1:]:
            yield (
                f"         {group['rebalances']} rebalances, the last {duration(rebalance['age'])} ago: "
                f"{printable(rebalance['reason'])}, {rebalance['result']} in {duration(rebalance['seconds'])}"
            )
    if (assign := now["assign"]) is not None:
        yield f"assign   {assign['finished']} of {assign['partitions']} partitions are finished"
    oldest = duration(max(ages)) if ages else None
    unknown = len(now["partitions"]) - len(lags)
    yield (
        f"lag      {sum(lags):,} records"
        + (f", the oldest {oldest} old" if oldest is not None else "")
        + (f"; not known of {unknown} of {len(now['partitions'])} partitions" if unknown else "")
    )


def _in_short(reason: str | None) -> str | None:
    """First line of a reason: an exception's type and message; --json has the traceback below it, and so has the
    log.
    """
    return reason.partition("\n")[0] if reason else reason


def _rates(now: Told, before: Told | None) -> list[float | None]:
    # In a container the next service has the same number.
    if before is None or before["pid"] != now["pid"] or before["uptime"] > now["uptime"]:
        return [None] * len(now["workers"])
    seconds = max(0.001, now["uptime"] - before["uptime"])
    handled = {worker["worker"]: worker["handled"] for worker in before["workers"]}
    return [max(0, w["handled"] - handled.get(w["worker"], w["handled"])) / seconds for w in now["workers"]]


def _worker(worker: Told, rate: float | None) -> tuple[str | int | float | None, ...]:
    rss = worker["rss_bytes"] // 1_000_000 if worker["rss_bytes"] is not None else None
    state = f"{worker['state']}, paused by lease" if worker["paused_by_lease"] else worker["state"]
    return (
        str(worker["worker"]), str(worker["pid"] or "") or None, state, worker["partitions"], worker["load"],
        worker["handled"], rate,
        worker["restarts"], rss, worker["in_hand"], duration(worker["in_hand_age"]),
    )  # fmt: skip


def _partitions(now: Told) -> Iterator[str]:
    """Counts by state, and every partition that has a reason to show."""
    counts = Counter(partition["state"] for partition in now["partitions"])
    yield f"{len(now['partitions'])} partitions: " + (
        ", ".join(f"{n} {state}" for state, n in counts.items()) or "none"
    )
    telling = [p for p in now["partitions"] if p["state"] != "running" or p["reason"]]
    rows = [
        (
            f"{p['topic']}-{p['partition']}",
            p["state"],
            duration(p["since"]),
            p["position"],
            p["lag"],
            _in_short(p["reason"]),
        )
        for p in telling[:_MOST_SHOWN]
    ]
    yield from table(("partition", "state", "for", "position", "lag", "why"), rows)
    if len(telling) > _MOST_SHOWN:
        yield f"… and {len(telling) - _MOST_SHOWN} more"


_MOST_SHOWN = 20

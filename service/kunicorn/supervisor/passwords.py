"""Passwords are rotated by writing the new one into its file: the workers' clients learn of it here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from kunicorn.observe import logs
from kunicorn.pipes.logins import Password
from kunicorn.settings import KafkaSettings

log = logs.get("kunicorn.passwords")

_INTERVAL = 3.0


async def watch_password(kafka: KafkaSettings, share: Callable[[Password], None], interval: float = _INTERVAL) -> None:
    """Look into the password's file every `interval` seconds, for ever; `share` a password that has changed.

    The supervisor's own connections read the file at each login, and new workers are told what is in it.
    """
    known = await asyncio.to_thread(kafka.secret, "sasl_password")
    while True:
        await asyncio.sleep(interval)
        password = await asyncio.to_thread(kafka.secret, "sasl_password")
        if password is not None and password != known:
            log.info("kafka.sasl_password_file holds another password: the workers log in with it from now on")
            known = password
            share(Password(kafka.sasl_username or "", password))

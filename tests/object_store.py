"""An object store for tests: S3 as a server of its own process speaks it (moto)."""

from __future__ import annotations

import http.client
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.kafka.ports import kept_port
from tests.waiting import wait_until


@contextmanager
def bucket_served(log: Path, name: str) -> Iterator[Mapping[str, str]]:
    """A bucket while the block runs: the environment in which clients find server and rights. `log`: where the server
    writes what it is asked.
    """
    server = f"http://127.0.0.1:{(port := kept_port())}"
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], stdout=output, stderr=output
        )
    try:
        wait_until(lambda: _made(f"{server}/{name}"), "the server", every=0.1)
        yield {
            "AWS_ENDPOINT_URL": server,
            "AWS_ACCESS_KEY_ID": "x",
            "AWS_SECRET_ACCESS_KEY": "x",
            "AWS_DEFAULT_REGION": "us-east-1",
            "no_proxy": f"127.0.0.1,{os.environ.get('no_proxy', '')}",
        }
    finally:
        process.kill()
        process.wait(60)


def _made(url: str) -> bool:
    """Whether the server has made the bucket, asked directly: a proxy would answer for it."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(urllib.request.Request(url, method="PUT"), timeout=60):
            return True
    except (OSError, http.client.HTTPException):
        return False

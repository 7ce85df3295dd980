"""A schema registry in a process of its own: the documented REST API, as far as decoders and encoders use it.

    python -m tests.fakes.schema_registry FILE [PASSWORD [PORT]]

FILE has the schemas by id as JSON, `{"1": {"schema": "…", "schemaType": "AVRO", "subject": "orders-value"}}`, and is
read at every request; a file that holds a number is the status of every answer, and one that holds `[404, "text"]` has
the status and the content of every answer that somebody else gives in its place. A schema without a subject is of none.
Versions of a subject are its ids in their order. What is registered is written into the file; an Avro record with a
field that its latest version does not have, and no default for it, is incompatible. With PASSWORD only
`orders:PASSWORD` is served. Prints its port.
"""

from __future__ import annotations

import base64
import contextlib
import json
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

Answer = tuple[int, object]


class Registry(BaseHTTPRequestHandler):
    """Answers about schemas by id, and about a subject's versions."""

    file = Path()
    password = ""

    def do_GET(self) -> None:
        """See the module."""
        self._serve(self._read)

    def do_POST(self) -> None:
        """Looks up, registers, compares."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self._serve(lambda path, schemas: self._told(path, schemas, body))

    def _serve(self, answer: Callable[[list[str], dict[str, Any]], Answer]) -> None:
        self.log_message("%s", self.path)
        login = base64.b64encode(f"orders:{self.password}".encode()).decode()
        if self.password and self.headers.get("Authorization") != f"Basic {login}":
            self._answer(401, {"error_code": 401, "message": "Unauthorized"})
            return
        schemas = json.loads(self.file.read_text())
        if isinstance(schemas, int):
            self._answer(schemas, {"error_code": schemas, "message": "ordered by the test"})
            return
        if isinstance(schemas, list):
            self._send(schemas[0], schemas[1].encode(), "text/html")
            return
        path = [unquote(each) for each in self.path.partition("?")[0].strip("/").split("/")]
        self._answer(*answer(path, schemas))

    def _read(self, path: list[str], schemas: dict[str, Any]) -> Answer:
        if path[0] == "schemas":
            number = path[2]
            if number in schemas:
                return 200, schemas[number]
            return 404, {"error_code": 40403, "message": f"Schema {number} not found"}
        _, subject, _, version = path
        of_subject = _of(subject, schemas)
        if not of_subject:
            return _no_subject(subject)
        at = len(of_subject) if version == "latest" else int(version)
        if at > len(of_subject):
            return 404, {"error_code": 40402, "message": f"Version {version} not found."}
        return 200, _registered(subject, of_subject, at)

    def _told(self, path: list[str], schemas: dict[str, Any], body: dict[str, Any]) -> Answer:
        subject = path[2] if path[0] == "compatibility" else path[1]
        of_subject = _of(subject, schemas)
        incompatible = _incompatible(schemas[of_subject[-1]], body) if of_subject else ""
        if path[0] == "compatibility":
            return (200, {"is_compatible": not incompatible}) if of_subject else _no_subject(subject)
        same = [at for at, number in enumerate(of_subject, 1) if schemas[number]["schema"] == body["schema"]]
        if same:
            return 200, _registered(subject, of_subject, same[0], body)
        if len(path) == 2:
            return (404, {"error_code": 40403, "message": "Schema not found"}) if of_subject else _no_subject(subject)
        if incompatible:
            message = f"Schema being registered is incompatible with an earlier schema for subject; {incompatible}"
            return 409, {"error_code": 409, "message": message}
        number = str(max(map(int, schemas), default=0) + 1)
        kept = {"schema": body["schema"], "schemaType": body.get("schemaType", "AVRO"), "subject": subject}
        self.file.write_text(json.dumps({**schemas, number: kept}))
        return 200, _registered(subject, [*of_subject, number], len(of_subject) + 1, body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Requests are noted beside the schemas."""
        with self.file.with_suffix(".requests").open("a") as file:
            file.write(f"{self.path}\n")

    def _answer(self, status: int, body: object) -> None:
        self._send(status, json.dumps(body).encode(), "application/vnd.schemaregistry.v1+json")

    def _send(self, status: int, content: bytes, kind: str) -> None:
        self.send_response_only(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def _of(subject: str, schemas: dict[str, Any]) -> list[str]:
    """Ids of the subject's schemas, by version."""
    return sorted((number for number, each in schemas.items() if each.get("subject") == subject), key=int)


def _registered(subject: str, numbers: list[str], version: int, schema: dict[str, Any] | None = None) -> object:
    own = schema or json.loads(Registry.file.read_text())[numbers[version - 1]]
    return {**own, "subject": subject, "version": version, "id": int(numbers[version - 1])}


def _no_subject(subject: str) -> Answer:
    return 404, {"error_code": 40401, "message": f"Subject '{subject}' not found."}


def _incompatible(old: dict[str, Any], new: dict[str, Any]) -> str:
    if {old.get("schemaType", "AVRO"), new.get("schemaType", "AVRO")} != {"AVRO"}:
        return ""
    known = {each["name"] for each in json.loads(old["schema"])["fields"]}
    added = [each for each in json.loads(new["schema"])["fields"] if each["name"] not in known]
    return next((f"READER_FIELD_MISSING_DEFAULT_VALUE {each['name']}" for each in added if "default" not in each), "")


@contextmanager
def registry(file: Path, password: str = "", port: int = 0) -> Iterator[str]:
    """Its address, while the block lasts. `port`: that of one that was away."""
    command = [sys.executable, "-m", "tests.fakes.schema_registry", str(file), password, str(port)]
    process = subprocess.Popen(command, cwd=Path(__file__).parents[2], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


class Hanging:
    """One that takes connections, and does not answer."""

    def __init__(self, listens: socket.socket) -> None:
        self._listens = listens
        self.url = f"http://127.0.0.1:{listens.getsockname()[1]}"

    def asked(self) -> int:
        """How many connections came since this was called last."""
        found = 0
        with contextlib.suppress(BlockingIOError):
            while True:
                self._listens.accept()[0].close()
                found += 1
        return found


@contextmanager
def hanging() -> Iterator[Hanging]:
    """It, while the block lasts."""
    with socket.socket() as listens:
        listens.bind(("127.0.0.1", 0))
        listens.listen(50)
        listens.setblocking(False)
        yield Hanging(listens)


def main() -> None:
    """Serve until killed."""
    file, password, port, *_ = [*sys.argv[1:], "", "0"]
    Registry.file, Registry.password = Path(file), password
    server = ThreadingHTTPServer(("127.0.0.1", int(port)), Registry)
    print(server.server_address[1], flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()

"""A schema registry in a process of its own: the documented REST API, as far as consumers use it.

    python -m tests.fakes.schema_registry FILE [PASSWORD]

FILE has the schemas by id as JSON, `{"1": {"schema": "…", "schemaType": "AVRO"}}`, and is read at every request; a file
that holds a number is the status of every answer. With PASSWORD only `orders:PASSWORD` is served. Prints its port.
"""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class Registry(BaseHTTPRequestHandler):
    """Answers GET /schemas/ids/{id}."""

    file = Path()
    password = ""

    def do_GET(self) -> None:
        """See the module."""
        self.log_message("%s", self.path)
        login = base64.b64encode(f"orders:{self.password}".encode()).decode()
        if self.password and self.headers.get("Authorization") != f"Basic {login}":
            self._answer(401, {"error_code": 401, "message": "Unauthorized"})
            return
        schemas = json.loads(self.file.read_text())
        if isinstance(schemas, int):
            self._answer(schemas, {"error_code": schemas, "message": "ordered by the test"})
            return
        number = self.path.partition("?")[0].removeprefix("/schemas/ids/")
        if number in schemas:
            self._answer(200, schemas[number])
        else:
            self._answer(404, {"error_code": 40403, "message": f"Schema {number} not found"})

    def log_message(self, format: str, *arguments: object) -> None:
        """Requests are noted beside the schemas."""
        with self.file.with_suffix(".requests").open("a") as file:
            file.write(f"{self.path}\n")

    def _answer(self, status: int, body: object) -> None:
        content = json.dumps(body).encode()
        self.send_response_only(status)
        self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@contextmanager
def registry(file: Path, password: str = "") -> Iterator[str]:
    """Its address, while the block lasts."""
    command = [sys.executable, "-m", "tests.fakes.schema_registry", str(file), *filter(None, [password])]
    process = subprocess.Popen(command, cwd=Path(__file__).parents[2], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def main() -> None:
    """Serve until killed."""
    Registry.file, Registry.password = Path(sys.argv[1]), "".join(sys.argv[2:])
    server = ThreadingHTTPServer(("127.0.0.1", 0), Registry)
    print(server.server_address[1], flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()

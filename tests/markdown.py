"""Code blocks and tables of the documentation, for tests that hold it to what it says and run what it tells people to
type."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_NAMED = re.compile(r"# ([\w./-]+\.(?:py|toml|ini|yaml))\b")


@dataclass(frozen=True)
class Block:
    """One fenced block of a page."""

    language: str
    text: str

    @property
    def file(self) -> str | None:
        """File that its first line names, as in `# shop/handlers.py: what comes in`; None where it names none."""
        named = _NAMED.match(self.text)
        return named[1] if named else None


def blocks(page: Path) -> list[Block]:
    """Every fenced block of the page, in order."""
    return [Block(language, text) for language, text in _BLOCK.findall(page.read_text())]


def files(page: Path) -> dict[str, str]:
    """Files that the page tells to write, by name. A later block of one name replaces an earlier one."""
    return {block.file: block.text for block in blocks(page) if block.file}


def write_files(page: Path, directory: Path, port: int) -> None:
    """Write the page's files; a broker at 127.0.0.1:9092 becomes one at `port`."""
    for name, text in files(page).items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("127.0.0.1:9092", f"127.0.0.1:{port}"))


def cells(row: str) -> list[str]:
    """Texts of a table's row."""
    return [cell.strip() for cell in row.removeprefix("|").removesuffix("|").split("|")]


def commands(page: Path) -> list[str]:
    """Every line of the page's shell blocks that is a command, without its comment."""
    lines = [line for block in blocks(page) if block.language == "sh" for line in block.text.splitlines()]
    return [command for line in lines if (command := line.partition("  #")[0].strip()) and not command.startswith("#")]

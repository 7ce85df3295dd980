"""What `kunicorn check` found of one thing."""

from __future__ import annotations

from dataclasses import dataclass

from kunicorn.errors import ExitCode


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the answer. `text` says what was found and, where it failed, what to do."""

    what: str
    text: str
    failure: ExitCode | None = None
    warning: bool = False
    """Allowed, and works, but should be known."""

    def __str__(self) -> str:
        return f"{self.result:<7} {self.what:<9} {self.text}"

    @property
    def result(self) -> str:
        """In a word."""
        return "FAILED" if self.failure is not None else "warning" if self.warning else "ok"

    def told(self) -> dict[str, str]:
        """For a program."""
        return {"what": self.what, "result": self.result, "text": self.text}

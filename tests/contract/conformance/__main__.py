"""Write docs/conformance.md from the tests."""

from __future__ import annotations

from tests.contract.conformance.page import write

write()

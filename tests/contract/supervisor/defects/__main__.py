"""As `tests.contract.worker.defects`, of the supervisor and its groups."""

from __future__ import annotations

from tests.contract.supervisor.defects.recorded import DEFECTS, HERE
from tests.contract.worker.defects.__main__ import main

if __name__ == "__main__":
    main("tests.contract.supervisor", HERE, DEFECTS, 2_000)

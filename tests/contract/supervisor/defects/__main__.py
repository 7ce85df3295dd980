"""As `tests.contract.worker.defects`, of the supervisor and its groups."""

from __future__ import annotations

from tests.contract.supervisor.defects.recorded import DEFECTS, FIRST_SEEDS, HERE
from tests.contract.worker.defects.__main__ import main

if __name__ == "__main__":
    main("tests.contract.supervisor", HERE, DEFECTS, FIRST_SEEDS, 2_000)

"""One story, to be read; or many, to be counted.

python -m tests.contract.supervisor --seed 1 --story 27 [--whole]
python -m tests.contract.supervisor --seed 1 --stories 2000
"""

from __future__ import annotations

import sys

from tests.contract.supervisor.stories import STORIES

if __name__ == "__main__":
    sys.exit(STORIES.main(__doc__, stories=200))

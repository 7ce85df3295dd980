"""One story, to be read; or many, to be counted.

python -m tests.contract.worker --seed 1 --story 27 [--whole]
python -m tests.contract.worker --seed 1 --stories 20000
"""

from __future__ import annotations

import sys

from tests.contract.worker.stories import STORIES

if __name__ == "__main__":
    sys.exit(STORIES.main(__doc__, stories=2000))

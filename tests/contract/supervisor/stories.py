"""Stories of a group, by the hundred."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from kunicorn.observe import logs
from tests.contract.stories import Stories, Tell
from tests.contract.supervisor.story import tell
from tests.contract.supervisor.truth import Violation


@contextmanager
def _in_silence() -> Iterator[Tell]:
    """What members log of brokers that fail is not told."""
    with mock.patch.object(logs._output, "threshold", logging.CRITICAL):
        logging.disable(logging.CRITICAL)
        try:
            yield tell
        finally:
            logging.disable(logging.NOTSET)


STORIES = Stories("tests.contract.supervisor", _in_silence, verdicts=(Violation,), simpler_tries=200)
told = STORIES.told

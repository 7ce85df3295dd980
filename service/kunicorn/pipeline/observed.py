"""How many offsets of a round are handled while its tasks still run.

1. A range that is through is told of by an accumulator, when its task ends, wherever that ran.
2. A range underway is noted in its task's mapped file (`kunicorn.pipeline.hands`), which the driver reads where it can
   see it: on the same machine, or on a volume that both have. Elsewhere only ranges that are through are counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kunicorn.pipeline.hands import noted_so_far
from kunicorn.pipeline.ranges import OffsetRange, total
from kunicorn.pipeline.storage import Directory

if TYPE_CHECKING:
    from pyspark import Accumulator


class Observed:
    """One round. Made by the driver's main thread, asked by the one that watches."""

    def __init__(self, through: Accumulator[int], hands: Directory, ranges: Sequence[OffsetRange]) -> None:
        """`through` is what tasks add to; `hands` is where they note what is in hand."""
        self._through, self._hands, self._ranges = through, hands, frozenset(ranges)
        self._all = total(ranges)
        self._most = 0

    def offsets(self) -> int:
        """So many are handled. Reads files.

        Never falls: between the end of a range and that of its task neither file nor accumulator knows of it, and a
        task that is tried again begins anew. Nor is it more than there are: Spark may run a task twice.
        """
        so_far = self._through.value + noted_so_far(self._hands, self._ranges)
        self._most = max(self._most, min(so_far, self._all))
        return self._most

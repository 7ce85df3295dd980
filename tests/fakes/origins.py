"""Origins of outputs, as the outbox sees them: which of their outputs still count, and no more."""

from __future__ import annotations

from dataclasses import dataclass, field

from kunicorn.positions import NO_OFFSET


@dataclass(eq=False)
class FakeOrigin:
    """A partition's records in one. `refused_at`: from there on nothing is to be delivered; `discarded`: of all."""

    number: int = 1
    refused_at: int = NO_OFFSET
    discarded: bool = False
    refusals: list[tuple[int, int, BaseException]] = field(default_factory=list)
    """First offset, the one that follows, and why."""

    @property
    def takes_all_outputs(self) -> bool:
        return not self.discarded and self.refused_at == NO_OFFSET

    def takes_output_at(self, offset: int) -> bool:
        return not self.discarded and (self.refused_at == NO_OFFSET or offset < self.refused_at)

    def refuse(self, offset: int, following: int, error: BaseException) -> int:
        """See `outbox.Origin`."""
        if not self.takes_output_at(offset):
            return 0
        self.refused_at = offset
        self.refusals.append((offset, following, error))
        return len(self.refusals)

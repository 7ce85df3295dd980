"""What every message between our processes is."""

from __future__ import annotations

import msgspec


class Tagged(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """A frame's content; its type's name travels as the tag."""

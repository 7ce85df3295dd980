"""The decoders that there are."""

from __future__ import annotations

import pytest

from kunicorn.columns import reference
from kunicorn.columns.decoding import Decoder
from tests.compiled import compiled


@pytest.fixture(params=["reference", "compiled"])
def decoder_class(request: pytest.FixtureRequest) -> type[Decoder]:
    """Each decoder in turn. `.ci/run` builds the compiled one first, and fails where that cannot be done."""
    if request.param == "reference":
        return reference.Decoder
    module = compiled()
    found: type[Decoder] = module.Decoder
    return found

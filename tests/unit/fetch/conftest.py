"""The decoders that there are."""

from tests.contract.columns.conftest import decoder_class

__all__ = ["decoder_class"]

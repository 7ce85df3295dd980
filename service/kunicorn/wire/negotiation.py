"""The first exchange on every connection: which versions the broker offers (ApiVersions, KIP-35 and KIP-511). Pure."""

from __future__ import annotations

from typing import NamedTuple

from kio.serial.errors import SerialError
from kio.serial.readers import read_int16

from kunicorn.wire.codec import decode_response
from kunicorn.wire.error_codes import ErrorCode, describe
from kunicorn.wire.errors import ProtocolError
from kunicorn.wire.versions import Api, VersionRange

_ERROR_AT = 4
"""The response header of ApiVersions is version 0 whatever the request's: just the correlation id."""


class RetryWith(NamedTuple):
    """The broker is older than our ApiVersions; ask again in this version."""

    version: int


Offer = dict[int, VersionRange]
"""What the broker offers, by API key; keys that we have never heard of among them."""


def read_api_versions(sent: int, frame: bytes) -> Offer | RetryWith:
    """What the answer to ApiVersions version `sent` leads to. Raises `ProtocolError`.

    Every retry is in a lower version than the one before, so that no broker can keep us here.
    """
    try:
        error = int(read_int16(frame, _ERROR_AT)[0])
    except SerialError as short:
        raise ProtocolError(f"the answer to ApiVersions v{sent} has only {len(frame)} bytes") from short
    if error == ErrorCode.UNSUPPORTED_VERSION and sent > 0:
        return RetryWith(min(_best_offered(frame), sent - 1))
    if error != ErrorCode.NONE:
        raise ProtocolError(f"ApiVersions v{sent} was refused: {describe(error)}")
    answer = decode_response(Api.API_VERSIONS, sent, frame)
    return {int(each.api_key): VersionRange(each.min_version, each.max_version) for each in answer.api_keys or ()}


def _best_offered(frame: bytes) -> int:
    """The version the refusal recommends, 0 if that cannot be read.

    A refusal has the layout of version 0 whatever was asked, and some brokers get even that wrong
    (`NetworkClient.java`, handleApiVersionsResponse).
    """
    try:
        refusal = decode_response(Api.API_VERSIONS, 0, frame)
    except ProtocolError:
        return 0
    offered = (each.max_version for each in refusal.api_keys or () if each.api_key == Api.API_VERSIONS)
    return max(0, int(next(offered, 0)))

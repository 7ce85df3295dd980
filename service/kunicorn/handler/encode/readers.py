"""Readers of what encoders have written, for people who look at outputs: `kunicorn.testing`, `kunicorn check --try`.

They are the decoders of the same names. What has none (a function of the user's, Protobuf of any class) stays bytes.
"""

from __future__ import annotations

from typing import Any

from confluent_kafka import Message

from kunicorn.handler.config import Decoding, Encoding, OutputEncoding
from kunicorn.handler.decode.decoders import NAMED, Decoder, Part, one
from kunicorn.handler.decode.forms import decoder_of

_REGISTERED = ("avro", "jsonschema")


class OutputReaders:
    """Decoders of what goes to each topic, made when first asked for."""

    def __init__(self, encoding: Encoding | None) -> None:
        self._encoding = encoding or Encoding()
        self._made: dict[tuple[str, Part], Decoder | None] = {}

    def read(self, topic: str, part: Part, written: bytes | None, headers: list[tuple[str, Any]]) -> Any:
        """The decoded value or key; the bytes where they are not decoded. Raises `Undecodable`."""
        if (decoder := self._decoder(topic, part)) is None or written is None:
            return written
        value, key = (written, None) if part is Part.VALUE else (None, written)
        message = Message(topic=topic, partition=0, offset=0, value=value, key=key, headers=headers or None)
        return one(decoder, message, part)

    def _decoder(self, topic: str, part: Part) -> Decoder | None:
        place = topic, part
        if place not in self._made:
            name = self._name(self._encoding.topics.get(topic, self._encoding.default), part)
            decoding = Decoding(schema_registry=self._encoding.schema_registry)
            self._made[place] = decoder_of(name, part, decoding) if name else None
        return self._made[place]

    def _name(self, encoding: OutputEncoding, part: Part) -> str | None:
        name: str = getattr(encoding, part.value)
        return name if name in NAMED or name in _REGISTERED or name.startswith("protobuf:") else None

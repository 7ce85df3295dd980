"""Reading of bytes that are not trusted, in plain Python: every length is checked before it counts.

Small, as the frame's reader and the batches' reader stand on it, and on nothing of one another.
"""

from __future__ import annotations


class Unreadable(ValueError):
    """The bytes end too early, or a number among them cannot be. The message says which."""


class Reader:
    """A place in bytes that moves on with each read. Methods raise `Unreadable` where the bytes do not suffice."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        """Bytes not read yet."""
        return len(self._data) - self._at

    def take(self, size: int) -> memoryview:
        """The next bytes."""
        if not 0 <= size <= self.left:
            raise Unreadable(f"{size} bytes announced where {self.left} are left")
        self._at += size
        return self._data[self._at - size : self._at]

    def integer(self, size: int) -> int:
        """A signed integer of `size` bytes, the highest first."""
        return int.from_bytes(self.take(size), "big", signed=True)

    def unsigned(self, bits: int = 32) -> int:
        """A variable-length integer (protocol buffers' varint) of 32 or 64 bits. One that has more is refused: Kafka's
        own reader drops them (`ByteUtils.readUnsignedVarint`), and no writer makes them."""
        value = 0
        for shift in range(0, bits, 7):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if value >> bits:
                    break
                return value
        raise Unreadable(f"a variable-length integer of more than {bits} bits")

    def signed(self, bits: int = 32) -> int:
        """A variable-length integer whose lowest bit is the sign (zigzag)."""
        value = self.unsigned(bits)
        return (value >> 1) ^ -(value & 1)

    def nullable(self) -> memoryview | None:
        """Bytes behind a signed variable length; None where that is negative, as Kafka reads it."""
        size = self.signed()
        return None if size < 0 else self.take(size)

    def compact(self) -> memoryview | None:
        """Bytes behind an unsigned length that counts one more; None for 0 (KIP-482)."""
        size = self.unsigned()
        return None if size == 0 else self.take(size - 1)

    def count(self) -> int:
        """Number of items of a compact array, null counted as none. Each takes a byte at least."""
        number = max(self.unsigned() - 1, 0)
        if number > self.left:
            raise Unreadable(f"{number} items announced where {self.left} bytes are left")
        return number

    def tags(self) -> dict[int, memoryview]:
        """Tagged fields (KIP-482). The last of those with the same tag counts."""
        found = {}
        for _ in range(self.unsigned()):
            tag, size = self.unsigned(), self.unsigned()
            found[tag] = self.take(size)
        return found

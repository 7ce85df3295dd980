"""From the bytes on the wire to what a handler wants: by name, by a function of the user's, by its parameter's type.

A value or key that cannot be decoded fails its record with `Undecodable`, which `[[handler.failures]]` can name as
`kunicorn.Undecodable`.
"""

from kunicorn.decoding.undecodable import NotDecodableYet, Undecodable

__all__ = ["NotDecodableYet", "Undecodable"]

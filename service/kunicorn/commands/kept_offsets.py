"""Handlers that keep their offsets themselves, for commands that try a handler on real records. Small, as the child of
`kunicorn check` loads it beside the user's code.
"""

from __future__ import annotations

from kunicorn.errors import ConfigError
from kunicorn.handler.load import Handler


def refuse_kept_offsets(handler: Handler) -> Handler:
    """The handler. Raises `ConfigError` where it stores the offset with a record's effects (`load_offsets`): a record
    tried out of its turn would move that on, and the service would begin behind it. What lies between would be handled
    by nobody.
    """
    if not handler.keeps_offsets:
        return handler
    raise ConfigError(
        f"{handler.entrypoint} keeps its offsets itself (load_offsets): a record that it handles here would move the "
        f"offset that it has stored, and the service would never handle the records before that; give the record to "
        f"kunicorn.testing.HandlerTest, with a database made for the test"
    )

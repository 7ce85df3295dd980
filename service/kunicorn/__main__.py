"""`python -m kunicorn`."""

from __future__ import annotations

from kunicorn.commands.cli import main

main()

"""`python -m kunicorn`."""

from __future__ import annotations

from kunicorn.cli import main

main()

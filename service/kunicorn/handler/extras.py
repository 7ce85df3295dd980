"""Remedy where an extra's package is missing. Small, as whoever lacks one loads it alone."""

from __future__ import annotations

from kunicorn import __version__


def install_extra(*extras: str) -> str:
    """Remedy for a library that only an extra brings. It names no package index: kunicorn is on no public one, and
    there anybody may register the name.
    """
    names = ",".join(extras)
    wheel = f"kunicorn-{__version__}-py3-none-any.whl"
    return f"the extra {names} has it; install that from where kunicorn came: pip install './{wheel}[{names}]'"

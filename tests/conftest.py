"""What every test may ask for."""

from __future__ import annotations

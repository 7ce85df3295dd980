"""A catalog of Iceberg tables in a file of SQLite's, beside a test's lake."""

from __future__ import annotations

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from tests.system.pipeline.desk import Desk

NAME = "shop.orders"


def catalogued(desk: Desk) -> str:
    """Name of the table that the desk's exports write to from now on."""
    desk.configure({"pipeline": {"iceberg_catalog": "test", "iceberg": _properties(desk)}})
    return NAME


def iceberg_table(desk: Desk) -> Table:
    """It, as another reader finds it."""
    return SqlCatalog("test", **_properties(desk)).load_table(NAME)


def _properties(desk: Desk) -> dict[str, str]:
    return {"type": "sql", "uri": f"sqlite:///{desk.directory}/catalog.db"}

"""Versions of Spark on which jobs are tried, beside the one that is installed, and what they lack."""

from __future__ import annotations

from pathlib import Path

VERSIONS = ("3.5.9", "4.0.5", "4.1.4", "4.2.1", "4.3.0")
WITHOUT_SOURCE = ("3.5.9",)
WITHOUT_FILTERS = ("3.5.9", "4.0.5")
WITHOUT_STREAMS = ("3.5.9", "4.0.5", "4.1.4")
FEATURES = {
    "backfill": "test_a_backfill_handles_every_record",
    "catch-up": "test_a_catch_up_brings_the_group_to_its_end",
    "transform": "test_a_frame_is_transformed_row_by_row",
    "export": "test_an_export_has_every_record",
    "data source": "test_the_data_source_has_what_the_versions_interface_has_and_says_what_it_needs",
    "stream": "test_a_stream_handles_every_record_or_says_what_it_needs",
}
"""Tests of `test_spark_versions`, by what they show."""
LACKS = {"data source": WITHOUT_SOURCE, "stream": WITHOUT_STREAMS}
"""Where what passes is the refusal."""
UNPACKED = Path(__file__).parents[3] / "build" / "spark"
"""Where each version that is tried is unpacked, in a folder of its number."""

"""Numbers that the pages tell in prose are those of the code."""

from __future__ import annotations

import importlib

import pytest

from tests.docs.pages import prose
from tieredstore.model.config import MIB, StoreConfig

LAYOUT, OPERATIONS, METRICS = "object-store-layout.md", "operations.md", "metrics.md"
DAY_MS = 86_400_000

# The page, its words, and where the code says so.
TOLD = [
    (LAYOUT, "A segment takes 1 000 parts", "providers.object_provider.PARTS_MAX", 1000),
    (LAYOUT, "Claims are multiples of 1 000", "providers.writer_epoch.LIVES", 1000),
    (LAYOUT, "for 30 days", "providers.writer_epoch._REMEMBERED_MS", 30 * DAY_MS),
    (LAYOUT, "sealed: ⌈N/8⌉ GET", "providers.object_calls.RANGE_BYTES_MAX", 8 * MIB),
    (LAYOUT, "at most 16 MiB in memory", "providers.sealing._BATCH_BYTES", 16 * MIB // 2),
    (LAYOUT, "a request for 1 000 keys", "driver.object_client.KEYS_PER_REQUEST", 1000),
    (LAYOUT, "a PUT for each 8 MiB", "providers.s3fs.PART_BYTES", 8 * MIB),
    (LAYOUT, "its listing is a second old", "providers.object_provider.LISTING_MS", 1000),
    (LAYOUT, "more than 256 MiB", "metadata.published.PUBLISHED_BYTES_MAX", 256 * MIB),
    (LAYOUT, "and three are kept", "metadata.published.KEPT", 3),
    (OPERATIONS, "journal up to 4 MiB, or", "metadata.files.JOURNAL_BYTES_MIN", 4 * MIB),
    (OPERATIONS, "one GET for 8 MiB", "access.survey._READ_BYTES", 8 * MIB),
    (OPERATIONS, "$0.023 for a GB-month", "access.survey.STORAGE_DOLLARS", 0.023),
    (METRICS, "100 000 sets of labels", "exporters.instruments.LABEL_SETS_MAX", 100_000),
]


@pytest.mark.parametrize(("name", "told", "where", "value"), TOLD, ids=[row[1] for row in TOLD])
def test_a_number_in_prose_is_that_of_the_code(
    name: str, told: str, where: str, value: float
) -> None:
    assert told in prose(name)
    module, _, constant = where.rpartition(".")
    assert getattr(importlib.import_module(f"tieredstore.{module}"), constant) == value


def test_the_interval_of_publishing_is_its_default() -> None:
    assert "every `publish_interval_ms` (60 000; 0: never)" in prose(LAYOUT)
    assert StoreConfig().publish_interval_ms == 60_000

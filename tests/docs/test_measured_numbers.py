"""Numbers in prose that no constant holds: what is measured is near them."""

from __future__ import annotations

from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest

from tests.docs.pages import prose
from tests.exporters.shown import measured_store
from tieredstore.driver.certify import certify
from tieredstore.exporters.prometheus import PrometheusMetrics
from tieredstore.metadata.json_store import JsonMetadataStore
from tieredstore.model.values import SegmentRecord, SegmentType
from tieredstore.testing.memory_objects import MemoryObjectClient
from tieredstore.testing.samples import a_message

NOW_MS = 1_700_000_000_000
TOPIC = "OrderEvents"


def test_a_proof_takes_about_as_many_requests_as_the_page_says() -> None:
    client = MemoryObjectClient()
    assert certify(client).passed
    assert "about 1 200 small requests" in prose("object-store-layout.md")
    assert 1_150 <= client.requests.total() < 1_250


def test_a_segment_takes_about_as_many_bytes_of_the_catalogue_as_the_page_says(
    tmp_path: Path,
) -> None:
    def size_with(count: int) -> int:
        path = tmp_path / f"{count}.json"
        with JsonMetadataStore.open(path) as store:
            store.add_topic(TOPIC)
            store.put(
                *(
                    SegmentRecord(
                        path=f"broker-a/{TOPIC}/3",
                        type=SegmentType.COMMIT_LOG,
                        base_offset=number << 30,
                        size=1 << 30,
                        create_timestamp=NOW_MS,
                        begin_timestamp=NOW_MS + number,
                        end_timestamp=NOW_MS + number + 1,
                    )
                    for number in range(count)
                )
            )
        return path.stat().st_size

    assert "about 270 bytes a segment" in prose("operations.md")
    assert 240 <= (size_with(1_100) - size_with(100)) / 1_000 <= 300


def test_a_page_without_paths_is_as_short_as_the_documents_say(tmp_path: Path) -> None:
    def page_bytes(*without: str) -> int:
        registry = CollectorRegistry()
        metrics = PrometheusMetrics(registry=registry, without=without)
        with measured_store(tmp_path / "-".join(("metrics", *without)), metrics) as store:
            for queue_id in range(120):
                store.put_message(a_message(queue_id=queue_id))
            assert store.flush()
            return len(generate_latest(registry))

    assert "a twelfth of the length" in prose("metrics.md")
    assert 9 <= page_bytes() / page_bytes("path") <= 15

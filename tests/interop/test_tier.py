"""A tier that we wrote, segment by segment, opened by RocketMQ's own classes."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.codec.encoders import java_store_timestamp
from tests.interop.verifier import verify
from tieredstore.codec.names import queue_path
from tieredstore.codec.queue_unit import UNIT_BYTES, encode_unit
from tieredstore.codec.record import peek_store_timestamp
from tieredstore.driver.runtime import Runtime
from tieredstore.metadata import JsonMetadataStore
from tieredstore.model.values import Host, QueueRecord, SegmentRecord, SegmentType
from tieredstore.providers.posix import PosixProvider
from tieredstore.testing.samples import BORN_HOST, STORE_HOST, a_record

pytestmark = [pytest.mark.interop, pytest.mark.slow]

LOG, QUEUE = SegmentType.COMMIT_LOG, SegmentType.CONSUME_QUEUE
BROKER, CLUSTER = "broker-a", "DefaultCluster"
LOG_BYTES_MAX, QUEUE_BYTES_MAX = 4000, 400
IPV6 = Host(bytes(range(16)), 10911)


@dataclass
class Written:
    topic: str
    queue_id: int
    queue_offset: int
    log_offset: int
    record: bytes


class TierWriter:
    """Rolls segments by size and keeps the catalogue, as simply as possible."""

    def __init__(self, root: Path, catalogue: JsonMetadataStore) -> None:
        self._provider = PosixProvider(root, CLUSTER, Runtime.inline())
        self._catalogue = catalogue

    def append(
        self, row: SegmentRecord | None, start: SegmentRecord, data: bytes, most: int
    ) -> SegmentRecord:
        """Append `data`; return the row of the segment that now ends with it."""
        if row is None:
            row = start
        elif row.size + len(data) > most:
            row = SegmentRecord(path=row.path, type=row.type, base_offset=row.end_offset)
        self._provider.open(row.path, row.type, row.base_offset).write(row.size, data)
        moment = start.begin_timestamp
        assert moment is not None
        row = SegmentRecord(
            path=row.path,
            type=row.type,
            base_offset=row.base_offset,
            size=row.size + len(data),
            create_timestamp=moment,
            begin_timestamp=row.begin_timestamp or moment,
            end_timestamp=moment,
        )
        self._catalogue.put(row)
        return row

    def queue(
        self, topic: str, queue_id: int, *, first: int, count: int, born: Host, store: Host
    ) -> list[Written]:
        path = queue_path(BROKER, topic, queue_id)
        self._catalogue.add_topic(topic)
        self._catalogue.put(QueueRecord(broker_name=BROKER, topic=topic, queue_id=queue_id))
        log: SegmentRecord | None = None
        units: SegmentRecord | None = None
        position, written = 0, []
        for number in range(first, first + count):
            record = a_record(
                number,
                topic=topic,
                queue_id=queue_id,
                log_offset=position,
                body_bytes=number * 7 % 500,
                born_host=born,
                store_host=store,
            )
            moment = peek_store_timestamp(record)
            empty = SegmentRecord(path=path, type=LOG, base_offset=0, begin_timestamp=moment)
            log = self.append(log, empty, record, LOG_BYTES_MAX)
            unit = encode_unit(log_offset=position, message_bytes=len(record), tags_code=number)
            empty = SegmentRecord(
                path=path, type=QUEUE, base_offset=first * UNIT_BYTES, begin_timestamp=moment
            )
            units = self.append(units, empty, unit, QUEUE_BYTES_MAX)
            written.append(Written(topic, queue_id, number, position, record))
            position += len(record)
        return written


@pytest.fixture
def written(tmp_path: Path) -> list[Written]:
    file = tmp_path / "store" / "config" / "tieredStoreMetadata.json"
    with JsonMetadataStore.open(file) as catalogue:
        tier = TierWriter(tmp_path / "tier", catalogue)
        return [
            *tier.queue("TopicTest", 0, first=0, count=70, born=BORN_HOST, store=STORE_HOST),
            *tier.queue("TopicTest", 3, first=100, count=45, born=BORN_HOST, store=STORE_HOST),
            *tier.queue("%RETRY%group", 0, first=7, count=30, born=BORN_HOST, store=IPV6),
            *tier.queue("T" * 200, 1, first=0, count=25, born=IPV6, store=IPV6),
            *tier.queue("主题", 1, first=0, count=5, born=BORN_HOST, store=STORE_HOST),
        ]


def test_java_reads_every_message_of_a_tier_we_wrote(
    written: list[Written], tmp_path: Path
) -> None:
    rows = verify(
        "tier",
        *("--tier", str(tmp_path / "tier"), "--tier-store", str(tmp_path / "store")),
        *("--broker", BROKER, "--cluster", CLUSTER),
        *("--commitlog-max", str(LOG_BYTES_MAX), "--cq-max", str(QUEUE_BYTES_MAX)),
        *("--index-slots", "64", "--index-items", "300"),
        work=tmp_path,
    )
    assert [row for row in rows if row["kind"] == "problem"] == []
    summary = rows[-1]
    assert (summary["messages"], summary["problems"]) == (len(written), 0)
    said = {
        (row["topic"], row["queueId"], row["queueOffset"]): row
        for row in rows
        if row["kind"] == "message"
    }
    assert len(said) == len(written)
    for one in written:
        row = said[one.topic, one.queue_id, one.queue_offset]
        assert row["physicalOffset"] == one.log_offset
        assert row["size"] == len(one.record)
        assert row["sha256"] == hashlib.sha256(one.record).hexdigest()
    segments = [row for row in rows if row["kind"] == "segment"]
    assert {row["type"] for row in segments} == {"COMMIT_LOG", "CONSUME_QUEUE"}
    assert len(segments) > 20


def test_java_takes_a_part_of_an_ipv6_address_for_the_time(written: list[Written]) -> None:
    """This is why times of such queues in Java's own tiers are not believed."""
    odd = [one for one in written if one.topic.startswith("TT")]
    assert all(java_store_timestamp(one.record) != peek_store_timestamp(one.record) for one in odd)

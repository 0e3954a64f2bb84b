"""A stream follows a tier as it grows, within its limits, and has every message exactly once."""

from __future__ import annotations

import base64
import json
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable

from tests.jobs.job_kit import Harmed
from tests.jobs.written_tier import SECOND_MS, START_MS, WrittenTier, posix_config
from tests.spark.spark_kit import options_of
from tieredstore.access.upkeep import expire
from tieredstore.jobs.slices import QueueRows
from tieredstore.model.errors import InvalidConfigError, SegmentCorruptError
from tieredstore.model.values import QueueKey, SegmentRecord, SegmentType
from tieredstore.spark.offsets import StreamOffsets, from_json, to_json
from tieredstore.spark.options import ReadOptions
from tieredstore.spark.reading import DataLossError, spark_schema
from tieredstore.spark.source import TierBatchReader
from tieredstore.spark.stream import (
    Backlog,
    TierStreamReader,
    advanced,
    progress,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = "topic string, queue_id int, queue_offset bigint"
KEYS = st.builds(QueueKey, st.sampled_from("abc"), st.integers(0, 3))


class Following:
    """A stream of a tier into Parquet, one AvailableNow run after the other."""

    def __init__(self, spark: SparkSession, tier: WrittenTier, place: Path, **options: Any) -> None:
        self._spark = spark
        self._options = {
            **options_of(tier.config),
            **{name: str(value) for name, value in options.items()},
        }
        self._out, self._checkpoint = str(place / "out"), str(place / "checkpoint")

    def run(self) -> list[int]:
        """The row count of each batch of this run."""
        stream = self._spark.readStream.format("tieredstore").schema(SCHEMA)
        query = (
            stream.options(**self._options)
            .load()
            .writeStream.format("parquet")
            .option("checkpointLocation", self._checkpoint)
            .trigger(availableNow=True)
            .start(self._out)
        )
        try:
            query.awaitTermination()
        finally:
            query.stop()
        self.progress = [json.loads(each.json) for each in query.recentProgress]
        return [each["numInputRows"] for each in self.progress if each["numInputRows"]]

    def found(self) -> list[tuple[str, int, int]]:
        return sorted(tuple(row) for row in self._spark.read.parquet(self._out).collect())

    @property
    def commits(self) -> Path:
        return Path(self._checkpoint) / "commits"


@pytest.fixture
def tier(tmp_path: Path) -> WrittenTier:
    made = WrittenTier(config=posix_config(tmp_path / "tier", index_enabled=False))
    made.add("orders", 0, 30)
    made.add("orders", 1, 9)
    return made


def everything(tier: WrittenTier) -> list[tuple[str, int, int]]:
    return sorted((*key, offset) for key, end in tier.ends.items() for offset in range(end))


def test_a_tier_that_grows_is_followed_in_batches_and_once_across_restarts(
    spark: SparkSession, tier: WrittenTier, tmp_path: Path
) -> None:
    following = Following(spark, tier, tmp_path, maxOffsetsPerTrigger=20)
    assert following.run() == [20, 19]
    told = [batch["sources"][0]["latestOffset"] for batch in following.progress]
    assert [each["lag"] for each in told][:2] == [19, 0]
    assert told[0]["topics"]["orders"]["0"] == {"oldest": 0, "newest": 30, "lag": 14}
    assert following.found() == everything(tier)
    tier.add("orders", 1, 5)
    tier.add("payments", 3, 7)
    assert following.run() == [12]
    assert following.found() == everything(tier)
    # If a driver dies after a batch is written and before it is noted, the batch runs again.
    last = max(following.commits.glob("[0-9]*"), key=lambda path: int(path.name))
    last.unlink()
    (following.commits / f".{last.name}.crc").unlink(missing_ok=True)
    tier.add("payments", 3, 1)
    assert following.run()[-1] == 1
    assert following.found() == everything(tier)


def test_a_stream_begins_where_it_is_told_and_expired_messages_are_an_error_or_passed_over(
    spark: SparkSession, tier: WrittenTier, tmp_path: Path
) -> None:
    since = START_MS + 25 * SECOND_MS
    late = Following(spark, tier, tmp_path / "late", starting="latest", max_bytes_per_trigger="1m")
    with pytest.raises(Exception, match=r"InvalidConfigError: .*did you mean topics\?") as refusal:
        Following(spark, tier, tmp_path / "none", topcs="orders").run()
    assert "UnboundLocalError" not in str(refusal.value)
    timed = Following(spark, tier, tmp_path / "timed", starting=since)
    assert late.run() == []
    assert timed.run() == [5]
    assert timed.found() == [("orders", 0, number) for number in range(25, 30)]
    tier.add("orders", 1, 200)
    expire_oldest(tier, "orders", 1)
    with pytest.raises(Exception, match="orders, queue 1: the stream continues at message 9, but"):
        late.run()
    patient = Following(
        spark, tier, tmp_path / "late", starting="latest", fail_on_data_loss="false"
    )
    assert sum(patient.run()) == patient_count(tier)


def test_a_queue_whose_messages_have_all_expired_keeps_its_place(tier: WrittenTier) -> None:
    queue = QueueKey("orders", 1)

    def step(begun: dict[str, Any] | None = None, **options: str) -> dict[str, Any]:
        reader = stream_reader(tier, **options)
        try:
            begun = begun or reader.initialOffset()
            end = reader.latestOffset(begun, ReadAllAvailable())
            read.append(rows_of(reader, begun, end))
            return end
        finally:
            reader.stop()

    read: list[dict[tuple[str, int], tuple[int, int]]] = []
    end = step()
    expire_all(tier, queue)
    assert step(end) == step(starting="latest") == end
    step()
    tier.add(*queue, 3)
    end = step(end)
    assert read[1:] == [{}, {}, {("orders", 0): (0, 30)}, {queue: (9, 12)}]
    tier.add(*queue, 2)
    expire_all(tier, queue)
    with pytest.raises(DataLossError, match="continues at message 12, but the tier has 14 to 14"):
        step(end)
    assert step(end, fail_on_data_loss="false")["orders"]["1"] == 14


def test_a_topic_that_was_deleted_and_made_again_is_data_loss_or_a_new_beginning(
    spark: SparkSession, tier: WrittenTier, tmp_path: Path
) -> None:
    """The new topic has more messages than the stream had read from the first one."""
    tier.add("payments", 0, 4)
    following = Following(spark, tier, tmp_path)
    assert sum(following.run()) == 43
    tier.delete("orders")
    assert following.run() == []  # a topic that is gone stops nothing
    tier.add("orders", 0, 50)
    tier.add("payments", 0, 2)
    line = "orders: the topic was deleted and made again: it was number 0 and is number 2"
    for _ in range(2):  # and again after a restart
        with pytest.raises(Exception, match=line):
            following.run()
    assert len(following.found()) == 43
    patient = Following(spark, tier, tmp_path, fail_on_data_loss="false")
    assert sum(patient.run()) == 52
    found = following.found()
    assert found.count(("orders", 0, 49)) == 1
    assert found.count(("orders", 0, 0)) == 2
    # A queue that the new topic gets late does not go on from the first topic's checkpoint.
    tier.add("orders", 1, 12)
    assert following.run() == [12]
    assert sorted(row[2] for row in following.found() if row[:2] == ("orders", 1)) == sorted(
        [*range(9), *range(12)]
    )
    tier.add("orders", 0, 1)
    assert following.run() == [1]


def test_a_checkpoint_without_numbers_of_topics_is_taken_up(
    spark: SparkSession, tier: WrittenTier, tmp_path: Path
) -> None:
    following = Following(spark, tier, tmp_path)
    assert sum(following.run()) == 39
    for file in (tmp_path / "checkpoint" / "offsets").glob("[0-9]*"):
        texts = file.read_text().split("\n")
        lines = [json.loads(text) if text[:1] == "{" else text for text in texts]
        older = [line for line in lines if isinstance(line, dict) and "orders" in line]
        assert older
        for line in older:
            assert line["orders"].pop("topic_id") == 0
        texts = [json.dumps(line) if isinstance(line, dict) else line for line in lines]
        file.write_text("\n".join(texts))
        file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
    tier.add("orders", 1, 3)
    assert following.run() == [3]
    assert following.found() == everything(tier)
    tier.delete("orders")
    tier.add("orders", 0, 60)
    with pytest.raises(Exception, match="orders: the topic was deleted and made again"):
        following.run()


def test_a_batch_that_was_planned_for_a_topic_before_it_was_made_again_has_none_of_the_new_one(
    tier: WrittenTier,
) -> None:
    begun = {"orders": {"0": 10, "1": 9, "topic_id": 0}}
    planned = {"orders": {"0": 30, "1": 9, "topic_id": 0}}
    for patience in ("true", "false"):
        reader = stream_reader(tier, fail_on_data_loss=patience)
        try:
            assert reader.latestOffset(begun, ReadAllAvailable()) == planned
            assert rows_of(reader, begun, planned) == {("orders", 0): (10, 30)}
        finally:
            reader.stop()
    reader = stream_reader(tier, fail_on_data_loss="false")
    strict = stream_reader(tier)
    try:
        assert reader.latestOffset(begun, ReadAllAvailable()) == planned
        assert strict.latestOffset(begun, ReadAllAvailable()) == planned
        tier.delete("orders")
        tier.add("orders", 0, 35)
        with pytest.raises(DataLossError, match="was number 0 and is number 1"):
            strict.partitions(begun, planned)
        assert rows_of(reader, begun, planned) == {}
        following = reader.latestOffset(planned, ReadAllAvailable())
        assert following == {"orders": {"0": 35, "topic_id": 1}}
        assert rows_of(reader, planned, following) == {("orders", 0): (0, 35)}
        with pytest.raises(DataLossError, match="was number 0 and is number 1"):
            strict.latestOffset(planned, ReadAllAvailable())
    finally:
        reader.stop()
        strict.stop()


def test_a_topic_of_which_a_stream_reads_nothing_may_be_made_again(tier: WrittenTier) -> None:
    tier.add("payments", 3, 4)
    with closing_stream(tier, queues="0") as reader:
        begun = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
        tier.delete("payments")
        tier.add("payments", 3, 5)
        assert reader.latestOffset(begun, ReadAllAvailable()) == begun
        tier.add("payments", 0, 2)
        end = reader.latestOffset(begun, ReadAllAvailable())
        assert rows_of(reader, begun, end) == {("payments", 0): (0, 2)}


def test_a_topic_that_is_deleted_behind_the_plan_of_a_batch_stops_no_stream(
    tier: WrittenTier,
) -> None:
    tier.add("payments", 0, 4)
    reader = stream_reader(tier)
    try:
        begun = reader.initialOffset()
        planned = reader.latestOffset(begun, ReadAllAvailable())
        tier.delete("orders")
        assert rows_of(reader, begun, planned) == {("payments", 0): (0, 4)}
    finally:
        reader.stop()
    again = stream_reader(tier)  # as in a driver that repeats the batch
    try:
        assert rows_of(again, begun, planned) == {("payments", 0): (0, 4)}
    finally:
        again.stop()


@pytest.mark.parametrize("limit", [{}, {"limit": "5"}])
@pytest.mark.parametrize("is_deleted", [False, True])
def test_what_expires_behind_the_plan_of_a_read_is_not_called_damage_alone(
    tier: WrittenTier, limit: dict[str, str], is_deleted: bool
) -> None:
    tier.add("orders", 0, 200)
    options = ReadOptions.parse({**options_of(tier.config), **limit})
    reader = TierBatchReader(options, spark_schema(options.scan.columns))
    partitions = reader.partitions()
    if is_deleted:
        tier.delete("orders")
    else:
        expire_oldest(tier, "orders", 0)
    line = "orders/0.*expired or was deleted after the read was planned.*set fail_on_data_loss to"
    with pytest.raises(DataLossError, match=line):
        list(reader.read(partitions[0]))


def test_a_batch_that_the_options_leave_out_now_is_not_called_expired(tier: WrittenTier) -> None:
    """A driver died in the batch, and the query is started again with fewer queues."""
    planning = stream_reader(tier)
    begun = planning.initialOffset()
    planned = planning.latestOffset(begun, ReadAllAvailable())
    planning.stop()
    line = "orders, queue 0: the batch was planned with messages before 30 of it, and the options"
    with closing_stream(tier, queues="1") as strict, pytest.raises(DataLossError, match=line):
        strict.partitions(begun, planned)
    with closing_stream(tier, queues="1", fail_on_data_loss="false") as patient:
        assert rows_of(patient, begun, planned) == {("orders", 1): (0, 9)}


def test_a_batch_lacks_nothing_of_topics_that_are_neither_there_nor_wanted(
    tier: WrittenTier,
) -> None:
    """A driver died in the batch, and with a topic that is gone the query cannot start again."""
    tier.add("payments", 0, 4)
    with tier.open() as parts:
        parts.files.create("payments", 1).start_at(0)  # nothing was put there
    with closing_stream(tier, topics="orders,payments") as planning:
        begun = planning.initialOffset()
        del begun["payments"]["1"]
        planned = planning.latestOffset(begun, ReadAllAvailable())
    assert planned["payments"]["1"] == 0
    with closing_stream(tier, topics="orders,payments", queues="0") as fewer:
        begun["orders"]["1"] = 9
        assert [*rows_of(fewer, begun, planned)] == [("orders", 0), ("payments", 0)]
    tier.delete("payments")
    with closing_stream(tier, topics="orders") as reader:
        assert rows_of(reader, begun, planned) == {("orders", 0): (0, 30)}


def test_a_batch_beyond_what_is_left_of_a_queue_brings_nothing_again(tier: WrittenTier) -> None:
    begun = {"orders": {"0": 25, "1": 9, "topic_id": 0}}
    planned = {"orders": {"0": 40, "1": 9, "topic_id": 0}}
    line = "orders, queue 0: the batch goes up to message 40, but the tier ends at 30"
    with closing_stream(tier) as strict, pytest.raises(DataLossError, match=line):
        strict.partitions(begun, planned)
    with closing_stream(tier, fail_on_data_loss="false") as patient:
        assert rows_of(patient, begun, planned) == {("orders", 0): (25, 30)}


def test_a_stream_does_not_end_where_a_queue_has_lost_its_end_as_if_that_were_all(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    harmed = Harmed.golden(tmp_path)
    os.truncate(harmed.file("GoldAa/0", "CONSUME_QUEUE", 1600), 30)
    with closing_stream(harmed) as strict:
        begun = strict.initialOffset()
        for _ in range(2):
            with pytest.raises(SegmentCorruptError, match=r"GoldAa/0: damaged .*30 bytes"):
                strict.latestOffset(begun, ReadAllAvailable())
    ending = json.dumps({"GoldAa": {"0": 81}})
    for options in ({"ending": ending}, {"topics": "GoldBB"}, {"end_offset": "81"}):
        with closing_stream(harmed, **options) as asked:
            assert asked.latestOffset(begun, ReadAllAvailable())
    with closing_stream(harmed, on_corrupt="skip") as patient:
        for _ in range(2):
            assert patient.latestOffset(begun, ReadAllAvailable())["GoldAa"]["0"] == 81
    assert caplog.text.count("GoldAa/0 is left out") == 1


def test_a_stream_reads_each_queue_from_and_up_to_the_offsets_that_it_is_told(
    tier: WrittenTier,
) -> None:
    tier.add("payments", 3, 7)
    begin = '{"orders": {"0": 12, "1": -1}}'
    end = '{"orders": {"0": 20, "1": -1}, "payments": {"3": 5}}'
    reader = stream_reader(tier, startingOffsets=begin, endingOffsets=end)
    try:
        begun = reader.initialOffset()
        ids = {topic: queues.pop("topic_id") for topic, queues in begun.items()}
        assert begun == {"orders": {"0": 12, "1": 9}, "payments": {"3": 0}}
        assert reader.reportLatestOffset()["lag"] == 18 + 0 + 7
        tier.add("orders", 1, 4)
        reached = reader.latestOffset(begun, ReadAllAvailable())
        assert reached == {
            "orders": {"0": 20, "1": 13, "topic_id": ids["orders"]},
            "payments": {"3": 5, "topic_id": ids["payments"]},
        }
        assert rows_of(reader, begun, reached) == {
            ("orders", 0): (12, 20),
            ("orders", 1): (9, 13),
            ("payments", 3): (0, 5),
        }
        assert reader.latestOffset(reached, ReadAllAvailable()) == reached
        told = reader.reportLatestOffset()
        assert (told["queues"], told["lag"], told["lag_max"]) == (3, 12, 10)
        assert told["topics"]["payments"] == {"3": {"oldest": 0, "newest": 7, "lag": 2}}
    finally:
        reader.stop()
    for wrong, error, line in (
        ({"startingOffsets": '{"orders": {"4": 1}}'}, InvalidConfigError, "starting: queue 4 of"),
        ({"endingOffsets": '{"order": {"0": 1}}'}, InvalidConfigError, "ending: queue 0 of 'ord"),
        ({"startingOffsets": '{"orders": {"0": 31}}'}, DataLossError, "continues at message 31"),
    ):
        reader = stream_reader(tier, **wrong)
        try:
            with pytest.raises(error, match=line):
                reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
        finally:
            reader.stop()


def test_a_stream_that_goes_on_refuses_an_end_in_a_queue_that_it_does_not_read(
    tier: WrittenTier,
) -> None:
    """Spark asks for the first offsets only when a query is new."""
    with closing_stream(tier) as reader:
        begun = reader.initialOffset()
    wrong = closing_stream(tier, ending='{"ordrs": {"0": 5}}')
    with wrong as reader, pytest.raises(InvalidConfigError, match="ending: queue 0 of 'ordrs'"):
        reader.latestOffset(begun, ReadAllAvailable())


def test_a_report_shows_the_queues_that_are_farthest_behind() -> None:
    queues = [
        QueueRows(key=QueueKey("t", n), path=f"b/t/{n}", log=(), queue=(units(n),))
        for n in range(500)
    ]
    told = progress(queues, {rows.key: 1 for rows in queues[:400]})
    assert told["queues"] == 500
    assert told["lag"] == sum(range(399)) + sum(range(400, 500))
    assert told["lag_max"] == 499
    shown = told["topics"]["t"]
    assert [*shown] == [str(n) for n in range(400, 500)]
    assert shown["480"] == {"oldest": 0, "newest": 480, "lag": 480}
    assert len(json.dumps(told)) < 10_000


def units(count: int) -> SegmentRecord:
    return SegmentRecord(
        path="b/t/0", type=SegmentType.CONSUME_QUEUE, base_offset=0, size=20 * count
    )


def stream_reader(tier: WrittenTier | Harmed, **options: str) -> TierStreamReader:
    """The reader as Spark makes it, but in this process."""
    parsed = ReadOptions.parse({**options_of(tier.config), **options})
    return TierStreamReader(parsed, spark_schema(parsed.scan.columns))


@contextmanager
def closing_stream(tier: WrittenTier | Harmed, **options: str) -> Iterator[TierStreamReader]:
    reader = stream_reader(tier, **options)
    try:
        yield reader
    finally:
        reader.stop()


def rows_of(
    reader: TierStreamReader, begun: dict[str, Any], end: dict[str, Any]
) -> dict[tuple[str, int], tuple[int, int]]:
    """The queue offsets of a batch: for each queue in it the first one and the end."""
    found: dict[tuple[str, int], list[int]] = {}
    for partition in reader.partitions(begun, end):
        for batch in reader.read(partition):
            for row in batch.to_pylist():
                key = row["topic"], row["queue_id"]
                found.setdefault(key, []).append(row["queue_offset"])
    assert all(sorted(at) == [*range(min(at), max(at) + 1)] for at in found.values())
    return {key: (min(at), max(at) + 1) for key, at in found.items()}


def expire_oldest(tier: WrittenTier, topic: str, queue_id: int) -> None:
    """Drop the first half of the segments, as retention does."""
    from tieredstore.access.wiring import open_tier
    from tieredstore.driver.runtime import Runtime

    parts = open_tier(tier.config, runtime=Runtime.inline(now_ms=START_MS))
    try:
        parts.load()
        file = parts.files.get(QueueKey(topic, queue_id))
        assert file is not None
        file.log.drop(file.log.segments[: len(file.log.segments) // 2])
        first = file.min_offset
        gone = [each for each in file.queue.segments if each.end // 20 <= first]
        file.queue.drop(gone)
    finally:
        parts.close()


def expire_all(tier: WrittenTier, key: QueueKey) -> None:
    """Expire all of a queue, as retention does when nobody writes to it any more."""
    with tier.open() as parts:
        file = parts.files.get(key)
        assert file is not None
        assert expire(file, START_MS + 1_000_000 * SECOND_MS).segment_count > 0


def patient_count(tier: WrittenTier) -> int:
    from tieredstore.access.reader import TieredReader

    with TieredReader.open(tier.config) as reader:
        minimum = reader.min_offset("orders", 1)
        assert minimum is not None
        assert minimum > 9
        return tier.ends[QueueKey("orders", 1)] - minimum


# Offsets alone


@given(
    backlogs=st.dictionaries(
        KEYS,
        st.builds(
            lambda start, count, size: Backlog(start=start, end=start + count, bytes_each=size),
            st.integers(0, 100),
            st.integers(0, 10_000),
            st.floats(1, 5000),
        ),
        min_size=1,
    ),
    count_max=st.one_of(st.none(), st.integers(1, 5000)),
    bytes_max=st.one_of(st.none(), st.integers(1, 1_000_000)),
)
def test_limits_are_kept_and_something_is_read_where_something_waits(
    backlogs: dict[QueueKey, Backlog], count_max: int | None, bytes_max: int | None
) -> None:
    ends = advanced(backlogs, count_max=count_max, bytes_max=bytes_max)
    taken = {key: ends[key] - backlogs[key].start for key in backlogs}
    assert all(0 <= taken[key] <= backlogs[key].count for key in backlogs)
    total = sum(taken.values())
    waiting = sum(backlog.count for backlog in backlogs.values())
    assert total > 0 or not waiting
    if count_max is None and bytes_max is None:
        assert total == waiting
    if count_max is not None:
        assert total <= count_max
        assert total == min(count_max, waiting) or bytes_max is not None
    if bytes_max is not None:
        sizes = {key: taken[key] * backlogs[key].bytes_each for key in backlogs}
        too_large = [key for key in backlogs if backlogs[key].bytes_each > bytes_max and taken[key]]
        assert [taken[key] for key in too_large] in ([], [1])
        assert sum(sizes[key] for key in sizes.keys() - set(too_large)) <= bytes_max * 1.0001


@pytest.mark.parametrize(
    ("size", "busy", "each"),
    [
        (100.0, 1_000_000, 100.0),  # it fits beside others
        (50_000.0, 400, 100.0),  # alone it is more than the limit, and than all others together
        (100.0, 1_000_000, 50_000.0),  # each of the others is more than the limit
    ],
)
def test_a_queue_of_one_message_need_not_wait_until_a_busy_one_is_read(
    size: float, busy: int, each: float
) -> None:
    backlogs = {
        QueueKey("busy", 0): Backlog(start=0, end=busy, bytes_each=each),
        QueueKey("quiet", 0): Backlog(start=7, end=8, bytes_each=size),
    }
    ends = advanced(backlogs, count_max=None, bytes_max=20_000)
    assert ends[QueueKey("quiet", 0)] == 8


@pytest.mark.parametrize("size", [60.0, 5_000.0])  # of a message of the second queue
def test_under_both_limits_no_queue_waits_for_ever(size: float) -> None:
    first, second = QueueKey("a", 0), QueueKey("b", 0)
    starts, ends = {first: 0, second: 0}, {first: 20, second: 50}
    for _ in range(100):
        backlogs = {
            first: Backlog(start=starts[first], end=ends[first], bytes_each=5.0),
            second: Backlog(start=starts[second], end=ends[second], bytes_each=size),
        }
        starts = advanced(backlogs, count_max=1, bytes_max=100)
        ends = {key: end + 1 for key, end in ends.items()}
    assert starts[first] > 0
    assert starts[second] > 0


@given(
    st.dictionaries(KEYS, st.integers(0, 2**62)),
    st.dictionaries(st.sampled_from("abcd"), st.integers(0, 2**31)),
)
def test_offsets_survive_the_checkpoint(
    offsets: dict[QueueKey, int], topic_ids: dict[str, int]
) -> None:
    topics = {key.topic for key in offsets}
    held = {topic: number for topic, number in topic_ids.items() if topic in topics}
    given = StreamOffsets(offsets=offsets, topic_ids=topic_ids)
    with pytest.MonkeyPatch.context() as patch:
        for shown_max in (500, 0):
            patch.setattr("tieredstore.spark.offsets.QUEUES_SHOWN_MAX", shown_max)
            document = to_json(given)
            assert ("packed" in document) == (len(offsets) > shown_max)
            assert from_json(json.loads(json.dumps(document))) == StreamOffsets(
                offsets=offsets, topic_ids=held
            )


def test_the_offsets_of_ten_thousand_queues_are_a_tenth_of_their_json() -> None:
    chosen = random.Random(7)
    offsets = {
        QueueKey(f"orders-{topic:04d}-events", queue_id): middle + chosen.randrange(200)
        for topic in range(1250)
        for middle in [chosen.randrange(20_000)]
        for queue_id in range(8)
    }
    numbers = {key.topic: number for number, key in enumerate(offsets)}
    given = StreamOffsets(offsets=offsets, topic_ids=numbers)
    document = to_json(given)
    assert from_json(document) == given
    assert len(json.dumps(document)) < 20_000


@given(st.binary(max_size=60), st.integers(0, 400), st.integers(0, 255))
def test_packed_offsets_that_are_damaged_are_refused_or_are_offsets(
    more: bytes, at: int, byte: int
) -> None:
    offsets = {QueueKey("abc"[n % 3], n): n * 1_000_003 for n in range(600)}
    packed = bytearray(base64.b85decode(to_json(StreamOffsets(offsets=offsets))["packed"]))
    packed[at % len(packed)] ^= byte
    for damaged in (bytes(packed), bytes(packed[:at]), more):
        with suppress(InvalidConfigError):
            read = from_json({"packed": base64.b85encode(damaged).decode()})
            assert all(0 <= offset < 2**63 for offset in read.offsets.values())


def test_another_sources_checkpoint_is_refused_by_name() -> None:
    wrong = (
        {"a": 1},
        {"packed": "?"},
        {"packed": "\u00e4"},
        [1],
        {"a": {"x": 1}},
        {"a": {"1": "2"}},
        None,
        {"a": {"\u00b2": 1}},
    )
    for document in (*wrong, {"a": {"topic_id": "1"}}):
        with pytest.raises(InvalidConfigError, match="is no offset of a tieredstore stream"):
            from_json(document)

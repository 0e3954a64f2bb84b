"""What a stream of Spark does, without Spark: batches between offsets that its checkpoint keeps."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from tieredstore.jobs.scan import OnCorrupt, Scan
from tieredstore.model.values import QueueKey
from tieredstore.spark.offsets import from_json
from tieredstore.spark.options import ReadOptions
from tieredstore.spark.reading import spark_schema
from tieredstore.spark.stream import TierStreamReader

if TYPE_CHECKING:
    from tests.simulation.world import Outsider

COLUMNS: Final = ("topic", "queue_id", "queue_offset", "body")
TRIGGERS_MAX: Final = 1_000


@dataclass
class Checkpoint:
    """How far a stream has come, and what it has read."""

    start: dict[str, Any] | None = None
    end: dict[str, Any] | None = None  # of a batch that was planned, but has not ended
    found: dict[QueueKey, dict[int, str]] = field(default_factory=dict)
    may_repeat: bool = False  # a rebuilt catalogue may number the topics anew
    turns: dict[str, int] = field(default_factory=dict)  # of histories, when it began


def follow(outsider: Outsider) -> None:
    """Some triggers of one query; the next call starts it again from its checkpoint."""
    world, dice = outsider.world, outsider.dice
    outsider.runtime.clock.sleep(dice.choice([1, 100, 3_000]))
    if not world.has_segments(world.machine):
        return
    _begin_anew(outsider)
    reader = _reader(outsider)
    try:
        for _ in range(dice.choice([1, 2, 4])):
            _trigger(outsider, reader)
            outsider.runtime.clock.sleep(dice.choice([0.1, 10, 1_000]))
    finally:
        reader.stop()


def follow_rest(outsider: Outsider) -> None:
    """After all faults: the stream must reach the end, and have skipped nothing."""
    _begin_anew(outsider)
    model, checkpoint = outsider.world.model, outsider.checkpoint
    reader = _reader(outsider)
    for _ in range(TRIGGERS_MAX):
        if not _trigger(outsider, reader):
            break
    else:
        raise AssertionError(f"the stream comes to no end: {checkpoint.start}")
    reader.stop()
    for queue in outsider.world.queues:
        if queue.topic in model.deletions:
            continue  # a recreated topic may come and go between two of its looks
        lacks = outsider.world.uploaded(queue) - checkpoint.found.get(queue, {}).keys()
        assert not lacks, f"the stream lacks {sorted(lacks)} of {queue}"


def _begin_anew(outsider: Outsider) -> None:
    """With a new checkpoint, as the guide says, if the tier has given up a history since then; also
    if `recover` has made its catalogue anew, whose published copy may have been older."""
    turns = outsider.world.histories.turns
    if outsider.checkpoint.turns != turns:
        outsider.checkpoint = Checkpoint(turns=dict(turns))


def _reader(outsider: Outsider) -> TierStreamReader:
    options = ReadOptions(
        config=outsider.config,
        scan=Scan(columns=COLUMNS, on_corrupt=OnCorrupt.FAIL, fails_on_loss=False),
        split_bytes=outsider.dice.choice([300, 1_000, 100_000]),
        max_messages=outsider.dice.choice([None, 1, 5]),
    )
    return TierStreamReader(options, spark_schema(COLUMNS))


def _trigger(outsider: Outsider, reader: TierStreamReader) -> bool:
    """Read the batch that was planned before the query died, or else the next one. Returns whether
    there was anything new."""
    checkpoint = outsider.checkpoint
    if checkpoint.start is None:
        checkpoint.start = reader.initialOffset()
    start = checkpoint.start
    if checkpoint.end is None:
        checkpoint.end = reader.latestOffset(start, reader.getDefaultReadLimit())
    end = checkpoint.end
    if end != start:
        _read_batch(outsider, reader, start, end)
    checkpoint.start, checkpoint.end = end, None
    return start != end


def _read_batch(
    outsider: Outsider, reader: TierStreamReader, start: dict[str, Any], end: dict[str, Any]
) -> None:
    world, checkpoint = outsider.world, outsider.checkpoint
    begun, ends = from_json(start).offsets, from_json(end).offsets
    model = world.elsewhere
    before, deletions = {key: model.required(key) for key in world.queues}, {**model.deletions}
    found: dict[QueueKey, dict[int, str]] = {}
    for partition in reader.partitions(start, end):
        for batch in reader.read(partition):
            for row in batch.to_pylist():
                queue = QueueKey(row["topic"], row["queue_id"])
                at, name = row["queue_offset"], row["body"].decode().split("|")[0]
                mine = found.setdefault(queue, {})
                assert at not in mine, f"{queue}: {at} comes twice in a batch"
                mine[at] = name
    world.saw_time()
    world.scheduler.note(f"a batch of {sum(map(len, found.values()))} messages")
    model = world.elsewhere
    turns = world.histories.turns
    anew = {topic for topic in turns if turns[topic] > checkpoint.turns[topic]}
    anew |= world.model.deletions.keys()
    for queue, mine in found.items():
        for at, name in mine.items():
            model.check_shown(name, queue, at, deletions.get(queue.topic, 0))
        ever = checkpoint.found.setdefault(queue, {})
        if queue.topic not in anew and not checkpoint.may_repeat:
            again = ever.keys() & mine.keys()
            assert not again, f"{queue}: {sorted(again)} come again"
        ever.update(mine)
    for queue in world.queues:
        if queue.topic in anew:
            continue
        within = range(begun.get(queue, 0), ends.get(queue, 0))
        there = {at for at in model.required(queue) & before[queue] if at in within}
        lacks = there - found.get(queue, {}).keys()
        assert not lacks, f"a batch from {begun} to {ends} lacks {sorted(lacks)} of {queue}"
        for at in there:
            assert found[queue][at] == model.queues[queue][at].name, f"{queue}: {at}"

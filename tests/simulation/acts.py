"""The small acts of clients and outsiders; what they see is compared with the model."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from random import Random
from typing import TYPE_CHECKING, Any, Final

import pyarrow.parquet as pq

from tests.simulation.model import Model, Put, Question
from tests.simulation.moves import FORMER, nothing_there
from tieredstore.access.audit import AuditKind, audit
from tieredstore.access.reader import TieredReader, reconcile
from tieredstore.access.upkeep import TendChore
from tieredstore.access.wiring import (
    catalogue_to_read,
    has_file,
    keeps_catalogue,
    provider_of,
    published_catalogue,
    publisher_of,
    written_catalogue,
)
from tieredstore.codec.names import queue_path
from tieredstore.codec.selected import SelectedRecord
from tieredstore.driver.dispatched import arrived
from tieredstore.driver.metadata import MetadataStore, Publisher
from tieredstore.driver.metrics import NoMetrics
from tieredstore.driver.provider import SegmentProvider
from tieredstore.driver.runtime import Clock, Runtime
from tieredstore.jobs.export import ExportJob
from tieredstore.jobs.job import Job, JobReport, JobState, LocalEngine, run_job
from tieredstore.jobs.migrate import migrate
from tieredstore.jobs.scan import OnCorrupt, Scan, plan_scan
from tieredstore.jobs.scrub import Scrub
from tieredstore.jobs.slices import EVERYTHING
from tieredstore.jobs.verify import VerifyJob
from tieredstore.jobs.verify_findings import Findings, VerifyKind
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import (
    BackendRefusedError,
    BackendUnavailableError,
    StoreClosedError,
)
from tieredstore.model.findings import Finding, FindingKind, Severity
from tieredstore.model.messages import DispatchRequest, Message
from tieredstore.model.values import Boundary, QueueKey, StorageLevel
from tieredstore.testing.message_store_contract import NamedTagFilter, TagFilter

if TYPE_CHECKING:
    from tests.simulation.world import Client, Life, Outsider, World

KEPT: Final = [QueueKey("Kept", 0), QueueKey("Kept", 1)]
BRIEF: Final = QueueKey("Brief", 0)
QUEUES: Final = [*KEPT, BRIEF]
SHARED_KEYS: Final = ("red", "green")
TAGS: Final = ("a", "b")
LEVELS: Final = [StorageLevel.NOT_IN_DISK, StorageLevel.NOT_IN_MEM, StorageLevel.FORCE]
PAGES_MAX: Final = 1_000
KEYS_ASKED: Final = 8


def produce(client: Client, life: Life) -> None:
    world, dice = client.world, client.dice
    draw = dice.random()
    if draw < 0.15:
        life.runtime.clock.sleep(dice.choice([0.01, 1, 3, 30, 700]))
        return
    if draw < 0.2:
        world.saw_time()
    queue = dice.choice([*KEPT, KEPT[0], BRIEF, *world.loads.queues_to_share()])
    puts = [a_put(world, dice, queue) for _ in range(dice.choice([1, 1, 1, 3]))]
    messages = [a_message(put, dice.choice([0, 100, 100, 900])) for put in puts]
    if dice.random() < 0.3:
        future = life.store.put_messages_future(messages)
        if dice.random() < 0.5:
            life.runtime.clock.sleep(dice.choice([0.01, 1]))
        results = future.result()
    else:
        results = life.store.put_messages(messages)
    life.saw()
    world.acknowledged(puts, results)


def a_put(world: World, dice: Random, queue: QueueKey, model: Model | None = None) -> Put:
    """A new message, not sent yet, that the model (by default the world's) now knows."""
    model = world.model if model is None else model
    world.names += 1
    put = Put(
        name=f"m{world.names}",
        queue=queue,
        keys=(f"u{world.names}", dice.choice(SHARED_KEYS)),
        tag=dice.choice(TAGS),
        begun=model.deletions.get(queue.topic, 0),
    )
    model.send(put)
    return put


def a_message(put: Put, filling: int) -> Message:
    return Message(
        topic=put.queue.topic,
        queue_id=put.queue.queue_id,
        body=f"{put.name}|".encode() + b"x" * filling,
        properties={"TAGS": put.tag, "UNIQ_KEY": put.keys[0], "KEYS": put.keys[1]},
    )


def consume(client: Client, life: Life) -> None:
    draw = client.dice.random()
    if draw < 0.15:
        life.runtime.clock.sleep(client.dice.choice([0.01, 1, 5, 60]))
    elif draw < 0.57:
        read_page(client, life)
    elif draw < 0.6:
        wait_for_more(client, life)
    elif draw < 0.7:
        read_run(client, life)
    elif draw < 0.83:
        ask_key(client, life)
    elif draw < 0.9:
        ask_time(client, life)
    elif draw < 0.95:
        ask_ends(client, life)
    else:
        ask_one(client, life)


def read_page(client: Client, life: Life) -> None:
    world, dice, model = client.world, client.dice, client.world.model
    queue = dice.choice(world.queues)
    if dice.random() < 0.1:
        life.store.level = dice.choice(LEVELS)
        life.forced_count += life.store.level is StorageLevel.FORCE
    if dice.random() < 0.5:
        offset = client.offsets.get(queue, 0)
    else:
        offset = dice.randrange(model.end(queue) + 2)
    tag = dice.choice([None, None, *TAGS])
    chosen = None if tag is None else dice.choice([TagFilter, NamedTagFilter])(tag)
    before, deletions = model.required(queue), model.deletions.get(queue.topic, 0)
    with world.rot.reading(queue, offset, is_filtered=chosen is not None):
        page = life.store.get_message(
            *queue, offset, count_max=dice.choice([1, 3, 8]), message_filter=chosen
        )
    life.saw()
    names = [f"{one.queue_offset}" for one in page.messages]
    world.scheduler.note(
        f"{queue.topic}/{queue.queue_id} from {offset}: {page.status.value} "
        f"{','.join(names)} next {page.next_offset}"
    )
    model.check_page(queue, page, offset, before, deletions, tag)
    client.offsets[queue] = page.next_offset
    if queue in KEPT and dice.random() < 0.5:
        offsets = life.store.consumer_offsets
        offsets.commit(client.name, *queue, page.next_offset)
        model.consume(client.name, queue, page.next_offset, is_sure=not life.is_forked)
        assert offsets.get(client.name, *queue) == page.next_offset


def read_run(client: Client, life: Life) -> None:
    """A read of columns, which must begin at the requested offset."""
    world, dice, model = client.world, client.dice, client.world.model
    queue = dice.choice(world.queues)
    offset = dice.randrange(model.end(queue) + 1)
    before, deletions = model.required(queue), model.deletions.get(queue.topic, 0)
    forced, count = life.store.level is StorageLevel.FORCE, life.forced_count
    run = life.store.read_range(*queue, offset, count_max=dice.choice([1, 3, 40]), bytes_max=4_000)
    life.saw()
    text = f"{queue.topic}/{queue.queue_id} from {offset}: {run.first_offset} to {run.end_offset}"
    world.scheduler.note(text)
    assert not len(run) or run.first_offset == offset, f"{text}: it begins elsewhere"
    for row in range(len(run)):
        at, record = run.first_offset + row, bytes(run.record(row))
        model.saw(
            SelectedRecord(
                queue_offset=at, log_offset=int(run.log_offsets[row]), record=record, tags_code=0
            ),
            queue,
            deletions=deletions,
        )
    there = model.required(queue) & before
    if forced or life.forced_count > count or world.is_out_of_room:
        return  # the tier alone was asked, or messages of the log are not in the queue yet
    if offset in there and model.deletions.get(queue.topic, 0) == deletions:
        assert len(run), f"{text}: {offset} is there"


def wait_for_more(client: Client, life: Life) -> None:
    """A client that registers, then looks, must be told of each later message."""
    dice, store = client.dice, life.store
    queue = dice.choice(client.world.queues)
    ends: list[int] = []

    def come(requests: Sequence[DispatchRequest]) -> None:
        ends.extend(
            one.end_offset
            for one in arrived(requests)
            if QueueKey(one.topic, one.queue_id) == queue
        )

    arrival = store.on_arrival(come)
    before, deletions = store.max_offset(*queue) or 0, client.world.model.deletions.get(queue.topic)
    life.runtime.clock.sleep(dice.choice([0.01, 1, 30]))
    end = store.max_offset(*queue) or 0
    life.runtime.clock.sleep(1)  # a message may be readable just before its callback
    life.saw()
    arrival.cancel()
    if client.world.is_out_of_room:
        return  # a dispatch that failed with a full disk continues when there is room
    is_same = client.world.model.deletions.get(queue.topic) == deletions
    assert end <= max([before, *ends]) or not is_same, f"{queue}: {before} to {end}, told of {ends}"


def ask_one(client: Client, life: Life) -> None:
    """Whether a message is there, and when it was stored."""
    dice, model = client.dice, client.world.model
    queue = dice.choice(client.world.queues)
    before, deletions = model.required(queue), model.deletions.get(queue.topic, 0)
    if not before or client.world.is_out_of_room:
        return  # with a full disk messages of the log may not be in the queue yet
    offset = dice.choice(sorted(before))
    forced, count = life.store.level is StorageLevel.FORCE, life.forced_count
    is_there = life.store.contains(*queue, offset)
    time = life.store.store_time(*queue, offset)
    life.saw()
    if offset not in model.required(queue) or model.deletions.get(queue.topic, 0) != deletions:
        return
    assert is_there, f"{queue} has no {offset}"
    if time is None and (forced or life.forced_count > count):
        return  # the tier alone was asked
    wanted = model.queues[queue][offset].store_ms
    assert time == wanted or not wanted, f"{queue}: {offset} was stored at {wanted}, not {time}"


def ask_key(client: Client, life: Life) -> None:
    world, dice, model = client.world, client.dice, client.world.model
    if not model.puts:
        return
    put = dice.choice(list(model.puts.values()))
    topic, question = put.queue.topic, Question.about(put, dice)
    before, deletions = model.having(topic, question.key), model.deletions.get(topic, 0)
    forced, count = life.store.level is StorageLevel.FORCE, life.forced_count
    answer = life.store.query_message(topic, question.key, **question.limits)
    life.saw()
    world.scheduler.note(f"{question}: {len(answer.messages)} complete={answer.complete}")
    if world.is_out_of_room and (forced or life.forced_count > count):
        before = []  # the tier alone is asked, and does not know messages without a queue unit
    model.check_answer(topic, question, answer, before, deletions)


def ask_time(client: Client, life: Life) -> None:
    dice, model = client.dice, client.world.model
    queue = dice.choice(client.world.queues)
    times = [put.store_ms for put in model.queues.get(queue, {}).values()]
    if not times:
        return
    asked = dice.choice(times) + dice.choice([-1, 0, 1])
    before, deletions = model.required(queue), model.deletions.get(queue.topic, 0)
    boundary = dice.choice([Boundary.LOWER, Boundary.LOWER, Boundary.UPPER])
    forced, count = life.store.level is StorageLevel.FORCE, life.forced_count
    end = life.store.max_offset(*queue) or 0
    found = life.store.offset_by_time(*queue, asked, boundary)
    life.saw()
    if forced or life.forced_count > count:  # the tier's end counts if it grows meanwhile
        end = 0
        if found is None or boundary is Boundary.UPPER:
            return
    if found is None and not end and client.world.is_out_of_room:
        return  # no unit had room: the queue is not there yet
    model.check_time(queue, asked, boundary, found, before, deletions, end=end)


def ask_ends(client: Client, life: Life) -> None:
    world, dice, model = client.world, client.dice, client.world.model
    queue = dice.choice(world.queues)
    before, deletions = model.required(queue), model.deletions.get(queue.topic, 0)
    committed = life.store.committed_offset(*queue)
    life.saw()
    model.saw_committed(queue, committed, deletions)
    # Behind messages that a power cut took, or that only a tier had that was taken back, the tier
    # goes on where the local store does.
    there_is = max(world.furthest[queue], life.local.min_offset(*queue) or 0)
    if committed is not None and committed > there_is:  # by the row of a segment without bytes
        there_is = world.next_row(queue)
    is_same = model.deletions.get(queue.topic, 0) == deletions
    # A bucket that a directory moved to never had what expired before.
    is_told = world.kinds[FORMER] == world.kinds[world.place] == "bucket"
    if committed is not None and is_same and is_told:
        assert committed <= there_is, f"{queue}: {committed} committed, the log has {there_is}"
    first, end = life.store.min_offset(*queue), life.store.max_offset(*queue)
    life.saw()
    there = model.required(queue) & before
    # With a full disk a queue may end before messages of the log, or not exist yet.
    is_short = world.is_out_of_room
    if first is None and is_short:
        return
    if there and model.deletions.get(queue.topic, 0) == deletions:
        assert first is not None, f"{queue} has no beginning"
        assert first <= min(there), f"{queue} begins at {first}: {min(there)}"
        assert end is not None, f"{queue} has no end"
        assert end > max(there) or is_short, f"{queue} ends at {end}: {max(there)}"


def look_after(client: Client, life: Life) -> None:
    """An operator, who flushes and seals."""
    draw = client.dice.random()
    if draw < 0.4:
        life.runtime.clock.sleep(client.dice.choice([1, 100, 2_000, 5_000]))
    elif draw < 0.6:
        model = client.world.model
        begun = model.consumed_counts()
        if life.store.flush(seal=client.dice.random() < 0.5):
            life.saw()
            model.kept(begun)
    elif draw < 0.7:
        life.store.health()
    else:
        life.runtime.clock.sleep(client.dice.choice([1, 10]))


def delete(client: Client, life: Life) -> None:
    model = client.world.model
    if client.dice.random() < 0.8:
        life.runtime.clock.sleep(client.dice.choice([0.1, 1, 30]))
        return
    client.world.scheduler.note("a topic is deleted")
    model.begin_deletion(BRIEF.topic)
    client.world.histories.begin_deletion(BRIEF.topic)
    life.store.delete_topics([BRIEF.topic])
    life.saw()
    model.end_deletion(BRIEF.topic)
    client.world.histories.end_deletion(BRIEF.topic)
    client.world.scheduler.note("the topic was deleted")


def restart(client: Client, life: Life) -> None:
    life.runtime.clock.sleep(client.dice.choice([0.1, 5, 100]))
    if client.dice.random() < 0.2:
        life.is_ending = True


def audit_all(client: Client, life: Life) -> None:
    """After all faults: everything must be uploaded, found, and sound."""
    world, model, store = client.world, client.world.model, life.store
    rot, stopped = world.rot, world.histories.stopped
    for _ in range(3):
        with suppress(*rot.errors):
            if store.flush(seal=True):
                break
    else:
        assert rot.flips or stopped, f"not all can be uploaded: {store.health()}"
    for queue in world.queues:
        for level in LEVELS:
            store.level = level
            walk(world, model, store.get_message, queue, model.end(queue))
        committed = store.committed_offset(*queue) or 0
        model.saw_committed(queue, committed, model.deletions.get(queue.topic, 0))
        if model.required(queue) and not rot.is_hit(queue) and queue not in stopped:
            assert committed >= model.end(queue), f"{queue}: {committed} of {model.end(queue)}"
    puts = list(model.puts.values())
    for put in client.dice.sample(puts, min(KEYS_ASKED, len(puts))):
        topic, question = put.queue.topic, Question(put.keys[0])
        before = model.having(topic, question.key)
        answer = store.query_message(topic, question.key, **question.limits)
        is_whole = not rot.flips and topic not in {queue.topic for queue in stopped}
        is_whole &= world.adoption.finds_keys_of(topic) and not world.histories.is_in_gap(topic)
        # The key of an expired message may name bytes that a new log does not have yet.
        is_whole &= topic not in {queue.topic for queue in world.forgotten}
        # With FORCE: what has expired in the tier alone may seem too young for that.
        is_whole &= world.scheduler.clock.now_ms() >= model.newest_ms
        assert answer.complete or not is_whole, f"{question}: not complete though all is sound"
        model.check_answer(topic, question, answer, before, model.deletions.get(topic, 0))
    tier = store._loaded().tier
    report = audit(tier.metadata, tier.provider, tier_config_of(life), life.runtime)
    damage = [each for each in report.damage if not world.histories.excuses(each, stopped)]
    rot.found += damage
    for file in tier.files.files() if rot.flips else ():
        held = *file.log.segments, *file.queue.segments
        rot.sizes |= {each.segment.path: each.record.size for each in held}
    assert not damage or rot.harms_tier, f"audit: {damage}"


def tier_config_of(life: Life) -> Any:
    return life.store.config


def walk(world: World, model: Model, get: Callable[..., Any], queue: QueueKey, end: int) -> None:
    """Read from the first to the last: following `next_offset` must yield every message."""
    offset = 0
    for _ in range(PAGES_MAX):
        if offset >= end:
            return
        before, deletions = model.required(queue), model.deletions.get(queue.topic, 0)
        try:
            with world.rot.reading(queue, offset):
                page = get(*queue, offset, count_max=8)
        except world.rot.errors:
            offset += 1
            continue
        world.saw_time()
        model.check_page(queue, page, offset, before, deletions, None)
        assert page.next_offset > offset, f"{queue}: {page.status} sends from {offset} nowhere"
        offset = page.next_offset
    raise AssertionError(f"{queue}: no end")


ACTS: Final[dict[str, Callable[[Client, Life], None]]] = {
    "producer": produce,
    "consumer": consume,
    "operator": look_after,
    "deleter": delete,
    "restarter": restart,
    "auditor": audit_all,
}


# Acts of outsiders


@dataclass
class Reading:
    """A reader whose picture may be old, and what the tier had when it last refreshed."""

    reader: TieredReader
    place: str  # where the tier was
    is_here: bool
    ends: dict[QueueKey, tuple[int, int]]


def read_elsewhere(outsider: Outsider) -> None:
    """A reader of the tier, without a broker, beside everything else; some stay open for long."""
    world, dice = outsider.world, outsider.dice
    outsider.runtime.clock.sleep(dice.choice([0.1, 2, 20, 1_000]))
    held, outsider.reading = outsider.reading, None
    if held is None:
        is_here = stands_here(outsider)
        ends = durable_ends(world, is_here=is_here)
        if not world.has_segments(world.machine):
            return  # without a tier a reader raises
        held = Reading(TieredReader(outsider.config), world.place, is_here, ends)
        held.reader.load()
    if dice.random() < 0.5 and world.place == held.place:
        outsider.reading = held
    for _ in range(dice.choice([1, 3, 6])):
        if world.place != held.place:
            break
        draw = dice.random()
        if draw < 0.2:
            now = durable_ends(world, is_here=held.is_here)
            held.reader.refresh()
            held.ends = now
        elif draw < 0.6:
            read_page_elsewhere(outsider, held.reader, held.ends)
        elif draw < 0.7:
            ask_time_elsewhere(outsider, held.reader, held.ends)
        else:
            ask_key_elsewhere(outsider, held.reader, held.ends)
    if outsider.reading is None:
        held.reader.close()


def stands_here(outsider: Outsider) -> bool:
    """Place half of the readers of a directory on the broker's host, where its catalogue is."""
    world = outsider.world
    is_here = world.is_posix and outsider.dice.random() < 0.5
    outsider.config = world.tier_config(world.machine if is_here else outsider.machine)
    return is_here


def durable_ends(world: World, *, is_here: bool) -> dict[QueueKey, tuple[int, int]]:
    """For each queue the deletions of its topic, and where it ends in the tier."""
    model = world.model
    there = [key for key in world.queues if world.adoption.is_there(key)]
    ends = {
        key: model.committed.get(key, 0) if is_here else world.durable_end(key) for key in there
    }
    deletions = world.elsewhere.deletions
    return {key: (deletions.get(key.topic, 0), ends.get(key, 0)) for key in world.queues}


def read_page_elsewhere(
    outsider: Outsider, reader: TieredReader, ends: dict[QueueKey, tuple[int, int]]
) -> None:
    world, dice = outsider.world, outsider.dice
    queue = dice.choice(world.queues)
    deletions, end = ends[queue]
    offset = dice.randrange(end + 1)
    before = {at for at in world.elsewhere.required(queue) if at < end}
    with world.rot.reading(queue, offset):
        page = reader.get_message(*queue, offset, count_max=dice.choice([1, 3, 8]))
    world.saw_time()
    names = ",".join(f"{one.queue_offset}" for one in page.messages)
    world.scheduler.note(f"{queue} from {offset} of {end}: {page.status.value} {names}")
    model = world.elsewhere
    model.check_page(queue, page, offset, before, deletions, None)
    there = model.required(queue) & before
    if offset in there and model.deletions.get(queue.topic, 0) == deletions:
        assert page.messages, f"{queue}: {offset} is in the tier, not {page.status}"


def ask_key_elsewhere(
    outsider: Outsider, reader: TieredReader, ends: dict[QueueKey, tuple[int, int]]
) -> None:
    world, dice, model = outsider.world, outsider.dice, outsider.world.model
    if not model.puts:
        return
    put = dice.choice(list(model.puts.values()))
    topic, question = put.queue.topic, Question.about(put, dice)
    deletions = {ends[queue][0] for queue in world.queues if queue.topic == topic}
    before = [
        each
        for each in world.elsewhere.having(topic, question.key)
        if each.offset is not None and each.offset < ends[each.queue][1]
    ]
    answer = reader.query_message(topic, question.key, **question.limits)
    world.saw_time()
    world.scheduler.note(f"{question}: {len(answer.messages)} complete={answer.complete}")
    world.elsewhere.check_answer(topic, question, answer, before, max(deletions))


def ask_time_elsewhere(
    outsider: Outsider, reader: TieredReader, ends: dict[QueueKey, tuple[int, int]]
) -> None:
    world, dice, model = outsider.world, outsider.dice, outsider.world.elsewhere
    queue = dice.choice(world.queues)
    deletions, end = ends[queue]
    times = [put.store_ms for put in model.queues.get(queue, {}).values()]
    if not times or not end:
        return
    asked = dice.choice(times) + dice.choice([-1, 0, 1])
    before = {at for at in model.required(queue) if at < end}
    found = reader.offset_by_time(*queue, asked)
    world.saw_time()
    world.elsewhere.check_time(queue, asked, Boundary.LOWER, found, before, deletions, end=end)


def scan_elsewhere(outsider: Outsider) -> None:
    """What Spark does: plan from a picture of the tier, then read each slice of it."""
    world, dice = outsider.world, outsider.dice
    outsider.runtime.clock.sleep(dice.choice([1, 100, 3_000]))
    ends = durable_ends(world, is_here=stands_here(outsider))
    before = {key: world.elsewhere.required(key) for key in world.queues}
    if not world.has_segments(world.machine):
        return
    with TieredReader(outsider.config) as reader:
        items = plan_scan(reader, EVERYTHING, split_bytes=dice.choice([300, 1_000, 100_000]))
    scan = Scan(
        columns=("topic", "queue_id", "queue_offset", "body"),
        on_corrupt=OnCorrupt.FAIL,
        fails_on_loss=False,
    )
    found: dict[QueueKey, dict[int, str]] = {}
    for item in items:
        for batch in scan.batches(outsider.config, item):
            for row in batch.to_pylist():
                queue = QueueKey(row["topic"], row["queue_id"])
                name = row["body"].decode().split("|")[0]
                known = found.setdefault(queue, {})
                assert row["queue_offset"] not in known, f"{queue}: {row} comes twice"
                known[row["queue_offset"]] = name
    world.saw_time()
    model = world.elsewhere
    for queue, known in found.items():
        for at, name in known.items():
            model.check_shown(name, queue, at, ends[queue][0])
    for queue, (deletions, end) in ends.items():
        if deletions % 2 or model.deletions.get(queue.topic, 0) != deletions:
            continue
        there = {at for at in model.required(queue) & before[queue] if at < end}
        lacks = there - found.get(queue, {}).keys()
        assert not lacks, f"the scan lacks {sorted(lacks)} of {queue}"
        for at in there:
            assert found[queue][at] == model.queues[queue][at].name
    world.scheduler.note(f"scanned {sum(map(len, found.values()))} messages")


def verify_elsewhere(outsider: Outsider) -> None:
    """After all faults: the tier must be whole."""
    rot = outsider.world.rot
    if not rot.flips:
        verify_tier(outsider, outsider.config)
        return
    try:
        report = run_outside(outsider, VerifyJob(config=outsider.config))
        # Leftovers too: bytes that no unit named when they were hit are written once more.
        rot.found += [each for each in report.findings if each.severity is not Severity.NOTE]
        rot.found += report.failures
    except rot.errors as error:
        rot.found.append(error)
    rot.check_found()


def verify_tier(outsider: Outsider, config: StoreConfig) -> None:
    world, histories = outsider.world, outsider.world.histories
    damage = [
        each
        for each in damage_of(outsider, config)
        if not (histories.excuses(each, histories.stopped) or world.begins_again(each))
    ]
    assert not damage, f"verify: {damage}"


def damage_of(outsider: Outsider, config: StoreConfig) -> list[Finding]:
    report = run_outside(outsider, VerifyJob(config=config))
    return [each for each in report.findings if each.severity is Severity.DAMAGE]


def run_outside(outsider: Outsider, job: Job[Any, Any]) -> JobReport:
    runtime = outsider.runtime
    engine = LocalEngine(pool=runtime.dispatch, threads=2)
    return run_job(job, engine, clock=runtime.clock)


def verify_beside(outsider: Outsider) -> None:
    """A broker may be at work meanwhile: what expires, moves or is deleted is not damage."""
    world, dice = outsider.world, outsider.dice
    outsider.runtime.clock.sleep(dice.choice([1, 100, 3_000]))
    if not world.has_segments(world.machine):
        return
    stands_here(outsider)
    with nothing_there():
        check_damage(outsider, damage_of(outsider, outsider.config))


def check_damage(outsider: Outsider, damage: Sequence[Finding]) -> None:
    """Check damage found in a tier whose broker may be at work."""
    world = outsider.world
    excused: set[FindingKind] = set()
    if world.is_out_of_room:  # a local queue that cannot begin after its load stops
        excused.add(AuditKind.STOPPED)
        if world.is_posix and outsider.is_elsewhere:  # deleted though unpublished for ten minutes
            excused |= {AuditKind.MISSING, VerifyKind.LOST_BYTES, VerifyKind.KEY_UNFOUNDED}
            excused |= {VerifyKind.INDEX_FILE, VerifyKind.KEY_MISSING}
    if world.histories.is_on and world.has_lost_disk:
        # Index files of another disk are corrected only by the next start.
        excused |= {VerifyKind.KEY_MISSING, VerifyKind.KEY_UNFOUNDED}
    excuses = world.histories.excuses
    damage = [
        each
        for each in damage
        if each.kind not in excused and not (excuses(each) or world.begins_again(each))
    ]
    assert not damage or world.rot.harms_tier, f"damage: {damage}"


class Patience(Clock):
    """A clock that ends a scrub, which would retry forever if the catalogue is damaged."""

    def __init__(self, world: World, clock: Clock) -> None:
        self._world, self._clock = world, clock

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def monotonic(self) -> float:
        return self._clock.monotonic()

    def sleep(self, seconds: float) -> None:
        if self._world.is_sound and self._world.rot.harms_tier:
            raise BackendUnavailableError("scrub", "wait", "it is ended")
        self._clock.sleep(seconds)


def scrub_beside(outsider: Outsider) -> None:
    """A scrub so slow that much happens between two parts; a later one continues it."""
    world, dice = outsider.world, outsider.dice
    outsider.runtime.clock.sleep(dice.choice([1, 100, 3_000]))
    if not world.has_segments(world.machine):
        return
    found: list[Finding] = []

    def told(findings: Findings) -> None:
        found.extend(each for each in findings.found if each.severity is Severity.DAMAGE)

    scrub = Scrub(
        VerifyJob(config=outsider.config, split_bytes=dice.choice([300, 100_000])),
        clock=Patience(world, outsider.runtime.clock),
        rate_bytes=dice.choice([10, 1_000, 1_000_000]),
        pause_seconds=dice.choice([1, 1_000]),
        state=outsider.machine.folder / f"scrub{world.place}.json",
        told=told,
    )
    with nothing_there():
        deque(islice(scrub.passes(), dice.choice([1, 2])), maxlen=0)
    check_damage(outsider, found)


@contextmanager
def written_tier(
    config: StoreConfig, runtime: Runtime, *, creates: bool = False
) -> Iterator[tuple[SegmentProvider, MetadataStore, Publisher | None] | None]:
    """Open a tier as a changing command does; yields None if there is none and not `creates`."""
    with ExitStack() as opened:
        provider = opened.enter_context(closing(provider_of(config, runtime, NoMetrics())))
        if not creates and not keeps_catalogue(config, provider) and not has_file(config):
            yield None
            return
        catalogue, _ = opened.enter_context(written_catalogue(config, runtime, provider))
        yield provider, catalogue, publisher_of(config, provider, catalogue)
        TendChore(provider, config.broker_name).step()


def audit_beside(outsider: Outsider) -> None:
    """What `audit` does without repair."""
    world, runtime = outsider.world, outsider.runtime
    runtime.clock.sleep(outsider.dice.choice([1, 100, 3_000]))
    if not world.has_segments(world.machine):
        return
    stands_here(outsider)
    config = outsider.config
    with ExitStack() as opened:
        provider = opened.enter_context(closing(provider_of(config, runtime, NoMetrics())))
        catalogue = opened.enter_context(closing(catalogue_to_read(config, runtime, provider)))
        reconcile(catalogue, provider, [config.broker_name])
        published = partial(published_catalogue, config, provider)
        report = audit(catalogue, provider, config, runtime, published=published)
    check_damage(outsider, report.damage)


def export_beside(outsider: Outsider) -> None:
    """Export what is new into a folder of Parquet files, beside everything else."""
    world = outsider.world
    outsider.runtime.clock.sleep(outsider.dice.choice([1, 100, 3_000]))
    if world.has_segments(world.machine):
        run_export(outsider)


def run_export(outsider: Outsider, target: str = "parquet") -> JobReport:
    job = ExportJob(
        config=outsider.config,
        target=str(outsider.machine.folder / target),
        columns=("queue_id", "queue_offset", "body"),
        split_bytes=outsider.dice.choice([300, 1_000, 100_000]),
    )
    report = run_outside(outsider, job)
    outsider.is_told |= tells_of_another_history(outsider.world, report)
    outsider.world.scheduler.note(f"export: {report.state.value} {dict(report.counts)}")
    return report


def export_rest(outsider: Outsider) -> None:
    """After all faults: each message of the tier must be in one file, once."""
    world, model = outsider.world, outsider.world.elsewhere
    earlier = exported_to(outsider) if world.histories.given_up else {}
    target, report = "parquet", run_export(outsider)
    is_numbered_anew = outsider.checkpoint.may_repeat and left_out(report) == {"TopicMadeAnew"}
    if outsider.is_told or is_numbered_anew:  # then the guide says to export to a new target
        target, earlier = "parquet-anew", {}
        report = run_export(outsider, target)
    is_remade = left_out(report) == {"TopicMadeAnew"} and BRIEF.topic in model.deletions
    assert report.state is JobState.DONE or is_remade, f"export: {report}"
    found = exported_to(outsider, target)
    for queue in KEPT:
        exported, uploaded = found[queue], world.uploaded(queue)
        lacks = uploaded - exported.keys()
        assert not lacks, f"the export lacks {sorted(lacks)} of {queue}"
        other = [at for at in uploaded if exported[at] != model.queues[queue][at].name]
        # Nothing tells if an older disk has brought back what was exported last.
        is_given_up = queue_path(world.broker, *queue) in world.histories.given_up
        known = earlier.get(queue, {}) if is_given_up else {}
        is_deceived = known.keys() >= {*other} and max(known, default=-1) not in other
        assert not other or is_deceived, f"{queue}: {other}"


def exported_to(
    outsider: Outsider, target: str = "parquet"
) -> defaultdict[QueueKey, dict[int, str]]:
    found: defaultdict[QueueKey, dict[int, str]] = defaultdict(dict)
    for path in sorted((outsider.machine.folder / target).glob("commit=*/**/*.parquet")):
        topic = next(part for part in path.parts if part.startswith("topic=")).partition("=")[2]
        # `pq.read_table` would make a data set of each file: a third of the time of long histories.
        for row in pq.ParquetFile(path).read(use_threads=False).to_pylist():
            queue = QueueKey(topic, row["queue_id"])
            # A recreated topic begins at 0 again, and a run may export the same offsets again.
            assert queue == BRIEF or row["queue_offset"] not in found[queue], (
                f"{queue}: {row} again"
            )
            found[queue][row["queue_offset"]] = row["body"].decode().split("|")[0]
    return found


def tells_of_another_history(world: World, report: JobReport) -> bool:
    """Whether the run says that the target has messages which the tier gave up. A queue that is
    shorter now is only noted: a published catalogue may be older than the export."""
    if not left_out(report) <= {"MadeAnew", "TopicMadeAnew"}:
        return False
    noted: Any = report.facts["made_anew"]
    told = [each.text.partition(":")[0] for each in report.failures if each.error == "MadeAnew"]
    told += [text.partition(" ends at ")[0] for text in noted]
    return bool(told) and world.histories.given_up.issuperset(told)


def left_out(report: JobReport) -> set[str]:
    return {each.error for each in report.failures}


def copy_elsewhere(outsider: Outsider) -> None:
    """Extend a copy of the tier in a folder, beside everything else."""
    world, dice = outsider.world, outsider.dice
    outsider.runtime.clock.sleep(dice.choice([1, 100, 3_000]))
    if not world.has_segments(world.machine):
        return
    if world.is_posix:
        outsider.config = world.tier_config(world.machine)  # where the catalogue is
    with nothing_there():
        grow_copy(outsider)


def grow_copy(outsider: Outsider) -> None:
    world = outsider.world
    report = migrated(outsider, cut_over=False)
    damage = [each for each in report.findings if each.severity is Severity.DAMAGE]
    assert not damage or world.rot.harms_tier, f"migrate: {damage}"
    world.scheduler.note(f"migrate: {dict(report.counts)}")


def cut_over(outsider: Outsider) -> None:
    """The writer has ended: cut over to the copy, which must have everything."""
    world, model = outsider.world, outsider.world.elsewhere
    report = migrated(outsider, cut_over=True)
    if world.adoption.is_half_done and {each.kind for each in report.findings} == {"not-named"}:
        return
    assert report.facts["cut_over"] == "done", f"migrate: {report}"
    with TieredReader(target_of(outsider)) as reader:
        for queue in world.queues:
            end = max(world.uploaded(queue), default=-1) + 1
            walk(world, model, reader.get_message, queue, end)
        puts = list(model.puts.values())
        for put in outsider.dice.sample(puts, min(KEYS_ASKED, len(puts))):
            topic, question = put.queue.topic, Question(put.keys[1])
            answer = reader.query_message(topic, question.key, **question.limits)
            is_whole = answer.complete or not world.adoption.finds_keys_of(topic)
            assert is_whole, f"{question}: not complete in the copy"
            before = [
                each
                for each in model.having(topic, question.key)
                if each.offset in world.uploaded(each.queue)
            ]
            known = before, model.deletions.get(topic, 0)
            model.check_answer(topic, question, answer, *known)
    verify_tier(outsider, target_of(outsider))


def migrated(outsider: Outsider, *, cut_over: bool) -> JobReport:
    runtime = outsider.runtime
    engine = LocalEngine(pool=runtime.dispatch, threads=2)
    target = target_of(outsider)
    clock = runtime.clock
    return migrate(outsider.config, target, engine=engine, cut_over=cut_over, clock=clock)


def target_of(outsider: Outsider) -> StoreConfig:
    folder = outsider.machine.folder / "copy"
    return replace(
        outsider.config,
        provider="posix",
        path=str(folder / "tier"),
        store_path=str(folder / "store"),
        metadata_path=str(folder / "catalogue.json"),
    )


def change_the_weather(outsider: Outsider) -> None:
    """Faults of disks, networks and clocks, each for a while."""
    world, dice = outsider.world, outsider.dice
    sleep = outsider.runtime.clock.sleep
    sleep(dice.choice([0.05, 1, 10, 200]))
    if world.is_sound:
        return
    kinds = world.weather
    if not kinds:
        return
    kind = dice.choice(kinds)
    machine = world.machine
    world.scheduler.note(kind)
    if kind == "no room":
        machine.is_full = True
        sleep(dice.choice([0.1, 5, 60]))
        machine.is_full = False
    elif kind == "nearly full":
        machine.used_percent = dice.choice([80, 95])
        sleep(dice.choice([11, 60]))
        machine.used_percent = 50
    elif kind == "input/output errors":
        machine.lies = dice.choice([1, 1, 3])
    elif kind == "short reads and writes":
        machine.is_hasty = True
        sleep(dice.choice([0.1, 5, 60]))
        machine.is_hasty = False
    elif kind == "rot":
        sleep(dice.choice([0, 1, 100, 3_000]))
        world.rot.flip()
    elif kind in world.bucket.until:
        world.bucket.until[kind] = world.scheduler.clock.monotonic() + dice.choice([0.5, 20, 200])
    elif kind == "clock":
        world.set_clock(dice.choice([-60_000, -1_000, 3_000, 2 * 3_600_000]))
    elif kind == "halt":
        life = world.life
        if life is not None:
            ahead = dice.choice([0.1, 30, 3_000])
            life.process.sleeps_until = world.scheduler.clock.monotonic() + ahead


def take_over(outsider: Outsider) -> None:
    """Make another machine the broker, while the former one sleeps or only seems to."""
    world, dice = outsider.world, outsider.dice
    outsider.runtime.clock.sleep(dice.choice([0.5, 3, 30, 1_000]))
    life = world.life
    if dice.random() < 0.5 or world.former is not None or life is None or not life.is_settled:
        return
    asleep = dice.choice([0, 5, 600, 5_000])
    life.process.sleeps_until = world.scheduler.clock.monotonic() + asleep
    world.former = life
    life.is_forked = True
    world.scheduler.note(f"another machine takes over, this one sleeps for {asleep} s")


def find_out(world: World, life: Life) -> None:
    """A former broker must notice at the latest when it has something to upload."""
    try:
        put = life.store.put_message(Message(topic=KEPT[0].topic, queue_id=0, body=b"to nobody"))
        if not put.stored:
            return  # its disk is nearly full: there is nothing to upload
        assert not life.store.flush(), "a fenced writer has uploaded"
        is_said = life.store.health().fence is not None
    except (BackendRefusedError, StoreClosedError) as error:  # fenced, or its disk fails
        world.scheduler.note(f"the former one: {error!r}")
        return
    # If its disk failed once, nothing may have been sent.
    assert is_said or world.is_out_of_room, "a fenced writer does not say so"


OUTSIDE: Final[dict[str, Callable[[Outsider], None]]] = {
    "reader": read_elsewhere,
    "scanner": scan_elsewhere,
    "verifier": verify_beside,
    "scrubber": scrub_beside,
    "inspector": audit_beside,
    "exporter": export_beside,
    "mover": copy_elsewhere,
    "successor": take_over,
    "weather": change_the_weather,
}

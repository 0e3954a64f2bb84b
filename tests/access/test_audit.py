"""An audit reports every kind of damage once and none in a whole tier; a repair loses nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.access.care_kit import Elsewhere, GoldenTier
from tests.access.tier_lives import Lives
from tests.cli.cli_kit import picture
from tests.codec.golden_files import BROKER
from tests.flat.tiers import FaultyCatalogue
from tieredstore.access.audit import AuditReport, audit
from tieredstore.access.queue_upload import STOPPED_QUEUE
from tieredstore.access.rebuild import rebuild
from tieredstore.access.wiring import published_catalogue
from tieredstore.codec.queue_unit import encode_unit
from tieredstore.driver.metadata import LINEAGE, MetadataStore, was_published
from tieredstore.driver.provider import Leftover, ListedSegment, ProviderWrapper, SegmentProvider
from tieredstore.driver.runtime import Runtime
from tieredstore.driver.segment import FileSegment
from tieredstore.flat import append_file
from tieredstore.metadata.json_store import JsonMetadataStore
from tieredstore.metadata.memory_store import MemoryMetadataStore
from tieredstore.metadata.tables import Tables
from tieredstore.model.errors import MetadataError
from tieredstore.model.findings import Finding
from tieredstore.model.values import Json, SegmentRecord, SegmentType, TopicRecord
from tieredstore.providers.memory import MemoryProvider
from tieredstore.providers.object_provider import ObjectProvider
from tieredstore.testing.faults import Faults
from tieredstore.testing.memory_objects import MemoryObjectClient, MemoryObjects
from tieredstore.testing.samples import TOPIC

LOG, QUEUE, INDEX = SegmentType.COMMIT_LOG, SegmentType.CONSUME_QUEUE, SegmentType.INDEX
Q = "GoldAa/0"  # log segments at 0, 13167, 26248, 41521; unit segments at 0, 400, ..., 1600


@pytest.fixture
def tier(tmp_path: Path) -> GoldenTier:
    return GoldenTier(tmp_path)


def missing(tier: GoldenTier) -> None:
    tier.file(Q, LOG, 13167).unlink()


def missing_index(tier: GoldenTier) -> None:
    tier.file("rmq_sys_INDEX/0", INDEX, 8884).unlink()


def short(tier: GoldenTier) -> None:
    file = tier.file(Q, LOG, 41521)
    file.write_bytes(file.read_bytes()[:-10])


def overlapping(tier: GoldenTier) -> None:
    file = tier.file(Q, LOG, 0)
    file.write_bytes(file.read_bytes() + bytes(100))
    row = tier.row(Q, LOG, 0)
    tier.metadata.put(replace(row, size=row.size + 100))


def tail(tier: GoldenTier) -> None:
    file = tier.file(Q, LOG, 0)
    file.write_bytes(file.read_bytes() + bytes(100))


def hole(tier: GoldenTier) -> None:
    tier.metadata.delete_segment(f"{BROKER}/{Q}", LOG, 13167)
    tier.file(Q, LOG, 13167).unlink()


def gap(tier: GoldenTier) -> None:
    tier.metadata.delete_segment(f"{BROKER}/{Q}", QUEUE, 400)
    tier.file(Q, QUEUE, 400).unlink()


def row_lost(tier: GoldenTier) -> None:
    tier.metadata.delete_segment(f"{BROKER}/{Q}", LOG, 13167)


def units_lost(tier: GoldenTier) -> None:
    for row in tier.metadata.segments(f"{BROKER}/{Q}", QUEUE):
        tier.metadata.delete_segment(row.path, QUEUE, row.base_offset)
        tier.file(Q, QUEUE, row.base_offset).unlink()


def misaligned(tier: GoldenTier) -> None:
    row = tier.row(Q, QUEUE, 1600)
    tier.metadata.delete_segment(row.path, QUEUE, 1600)
    tier.metadata.put(replace(row, base_offset=1601))
    tier.file(Q, QUEUE, 1600).rename(tier.file(Q, QUEUE, 1601))


def units_beyond(tier: GoldenTier) -> None:
    file = tier.file(Q, QUEUE, 1600)
    unit = encode_unit(log_offset=60_000, message_bytes=200, tags_code=0)
    file.write_bytes(file.read_bytes() + 2 * unit)
    tier.metadata.put(replace(tier.row(Q, QUEUE, 1600), size=100))


def disorder(tier: GoldenTier) -> None:
    file = tier.file(Q, QUEUE, 800)
    file.write_bytes(tier.file(Q, QUEUE, 0).read_bytes()[:20] + file.read_bytes()[20:])


def no_message(tier: GoldenTier) -> None:
    unit = tier.file(Q, QUEUE, 1600).read_bytes()[-20:]
    file, at = tier.file(Q, LOG, 41521), int.from_bytes(unit[:8], "big") - 41521
    data = file.read_bytes()
    file.write_bytes(data[:at] + bytes(8) + data[at + 8 :])


def unknown_queue(tier: GoldenTier) -> None:
    tier.metadata.delete_queue("GoldAa", 0)


def unknown_topic(tier: GoldenTier) -> None:
    tier.metadata.delete_topic("GoldAa")


def stopped(tier: GoldenTier) -> None:
    tier.metadata.put_note(STOPPED_QUEUE, f"{BROKER}/{Q}", {"reason": "it is ahead"})


def doomed_segment(tier: GoldenTier) -> None:
    tier.metadata.put_note(append_file.DELETION_NOTE, f"{BROKER}/{Q}/COMMIT_LOG/99999", 1)
    tier.file(Q, LOG, 99999).write_bytes(b"left behind")


def behind(tier: GoldenTier) -> None:
    row = tier.row(Q, QUEUE, 1600)
    tier.metadata.put(replace(row, size=20))


def expired(tier: GoldenTier) -> None:
    for base in (0, 13167):
        tier.metadata.delete_segment(f"{BROKER}/{Q}", LOG, base)
    tier.file(Q, LOG, 13167).unlink()


def double(tier: GoldenTier) -> None:
    tier.file(Q, LOG, 20_000).write_bytes(bytes(1_000))


def newer(tier: GoldenTier) -> None:
    tier.file(Q, LOG, 51274).write_bytes(bytes(1_000))


def stranger(tier: GoldenTier) -> None:
    file = tier.file("Unknown/7", LOG, 0)
    file.parent.mkdir(parents=True)
    file.write_bytes(bytes(1_000))


DAMAGES: list[tuple[Callable[[GoldenTier], None], str, str]] = [
    (missing, "missing", f"{Q}/COMMIT_LOG/13167"),
    (missing_index, "missing", "rmq_sys_INDEX/0/INDEX/8884"),
    (short, "short", f"{Q}/COMMIT_LOG/41521"),
    (overlapping, "overlapping", f"{Q}/COMMIT_LOG/0"),
    (hole, "hole", f"{Q}/COMMIT_LOG/0"),
    (misaligned, "misaligned", f"{Q}/CONSUME_QUEUE/1601"),
    (units_beyond, "units-beyond-log", f"{Q}/CONSUME_QUEUE/1600"),
    (disorder, "units-in-disorder", f"{Q}/CONSUME_QUEUE/800"),
    (no_message, "no-message", f"{Q}/CONSUME_QUEUE/1600"),
    (unknown_queue, "unknown-queue", Q),
    (unknown_topic, "unknown-topic", "GoldAa"),
    (stopped, "stopped-queue", Q),
]
LEFTOVERS: list[tuple[Callable[[GoldenTier], None], str, str]] = [
    (doomed_segment, "doomed", f"{Q}/COMMIT_LOG/99999"),
    (expired, "orphaned", f"{Q}/COMMIT_LOG/0"),
    (double, "orphaned", f"{Q}/COMMIT_LOG/20000"),
    (behind, "catalogue-behind", f"{Q}/CONSUME_QUEUE/1600"),
]
KEPT: list[tuple[Callable[[GoldenTier], None], str, str]] = [
    (row_lost, "orphaned", f"{Q}/COMMIT_LOG/13167"),
    (newer, "orphaned", f"{Q}/COMMIT_LOG/51274"),
    (stranger, "orphaned", "Unknown/7/COMMIT_LOG/0"),
    (gap, "gap", f"{Q}/CONSUME_QUEUE/0"),
    (tail, "tail", f"{Q}/COMMIT_LOG/0"),
    (units_lost, "no-units", f"{Q}/COMMIT_LOG/0"),
]


def named(cases: list[tuple[Callable[[GoldenTier], None], str, str]]) -> pytest.MarkDecorator:
    names = [case[0].__name__ for case in cases]
    return pytest.mark.parametrize(("harm", "kind", "place"), cases, ids=names)


def test_a_whole_tier_has_nothing_to_tell(tier: GoldenTier) -> None:
    report = tier.audit()
    assert (report.findings, report.is_clean) == ((), True)
    assert (report.queue_count, report.segment_count, report.size) == (9, 57, 346_788)


@named([*DAMAGES, *LEFTOVERS, *KEPT])
def test_each_is_named_once_and_looking_changes_nothing(
    tier: GoldenTier, harm: Callable[[GoldenTier], None], kind: str, place: str
) -> None:
    harm(tier)
    before = picture(tier.root)
    assert tier.found() == [(kind, place)]
    assert picture(tier.root) == before


@named(DAMAGES)
def test_damage_stays_after_a_repair(
    tier: GoldenTier, harm: Callable[[GoldenTier], None], kind: str, place: str
) -> None:
    harm(tier)
    files = picture(tier.root / "tiered")
    report = tier.audit(repair=True)
    assert len(report.damage) == 1
    assert not report.is_clean
    assert picture(tier.root / "tiered") == files


@named(KEPT)
def test_what_may_be_data_is_never_deleted(
    tier: GoldenTier, harm: Callable[[GoldenTier], None], kind: str, place: str
) -> None:
    harm(tier)
    files = picture(tier.root / "tiered")
    assert tier.found(repair=True) == [(kind, place)]
    assert picture(tier.root / "tiered") == files


@named(LEFTOVERS)
def test_a_repair_does_away_with_what_nobody_can_miss(
    tier: GoldenTier, harm: Callable[[GoldenTier], None], kind: str, place: str
) -> None:
    harm(tier)
    before = {(row.path, row.type, row.base_offset) for row in tier.metadata.segments()}
    assert tier.found(repair=True) == []
    assert tier.found() == []
    assert {(row.path, row.type, row.base_offset) for row in tier.metadata.segments()} == before
    assert {(row.path, row.type, row.base) for row in tier.provider.list()} == before
    assert tier.row(Q, QUEUE, 1600).size == 60


def test_what_a_cut_segment_lacks_is_no_spare_elsewhere(tier: GoldenTier) -> None:
    """Bytes 18167 to 23000 are in the segment that no row names, and nowhere else."""
    file = tier.file(Q, LOG, 13167)
    data = file.read_bytes()
    file.write_bytes(data[:5_000])
    tier.file(Q, LOG, 15_000).write_bytes(data[15_000 - 13_167 : 23_000 - 13_167])
    files = picture(tier.root / "tiered")
    found = [("short", f"{Q}/COMMIT_LOG/13167"), ("orphaned", f"{Q}/COMMIT_LOG/15000")]
    assert tier.found(repair=True) == found
    assert picture(tier.root / "tiered") == files


def test_a_hole_that_is_filled_in_part_is_a_hole(tier: GoldenTier) -> None:
    hole(tier)
    tier.file(Q, LOG, 13167).write_bytes(bytes(10))
    assert ("hole", f"{Q}/COMMIT_LOG/0") in tier.found()


def test_a_repair_needs_the_lock_of_the_catalogue(tier: GoldenTier) -> None:
    double(tier)
    live, tier.metadata = tier.metadata, JsonMetadataStore.open(tier.catalogue, read_only=True)
    with pytest.raises(MetadataError):
        tier.audit(repair=True)
    assert tier.found() == [("orphaned", f"{Q}/COMMIT_LOG/20000")]
    live.close()


def test_another_brokers_segments_are_no_business_of_ours(tier: GoldenTier) -> None:
    file = tier.file(Q, LOG, 0)
    other = Path(str(file).replace(BROKER, "broker-b"))
    other.parent.mkdir(parents=True)
    other.write_bytes(b"theirs")
    assert tier.found(repair=True) == []
    assert other.exists()


# What an audit says about the catalogue that is published for readers elsewhere


PATH = f"broker-a/{TOPIC}/0"


@pytest.fixture
def there(tmp_path: Path) -> Iterator[Elsewhere]:
    made = Elsewhere(tmp_path, "posix")
    made.broker.fill(12)
    yield made
    made.broker.store.shutdown()


def found(there: Elsewhere, copy: MetadataStore | None = None) -> list[tuple[str, str]]:
    """Kind and detail of each finding about the published catalogue, or about `copy` instead."""
    parts = there.broker.tier
    config, provider = there.broker.config, parts.provider

    def published() -> MetadataStore | None:
        return copy or published_catalogue(config, provider)

    report = audit(parts.metadata, provider, config, there.broker.runtime, published=published)
    told: list[Finding] = [each for each in report.findings if "published" in each.kind]
    return [(f"{each.severity.value} {each.kind}", each.detail) for each in told]


def test_a_tier_that_was_never_published_has_nothing_to_tell(there: Elsewhere) -> None:
    assert found(there) == []


def test_a_published_catalogue_that_is_up_to_date_has_nothing_to_tell(there: Elsewhere) -> None:
    there.publish()
    assert found(there) == []


def test_one_that_lags_is_a_note_also_behind_expiry_and_a_deletion(there: Elsewhere) -> None:
    there.broker.fill(4, topic="Gone")
    there.publish()
    there.silence()
    there.expire(12)
    there.broker.store.delete_topics(["Gone"])
    there.broker.fill(3, topic="New")
    ((kind, detail),) = found(there)
    assert kind == "note published-behind"
    assert "generation 1 is older than the catalogue" in detail


def test_one_that_lags_behind_a_topic_that_was_made_again_is_a_note(there: Elsewhere) -> None:
    """Its rows of the former topic are only as old as the rest of it."""
    there.publish()
    there.silence()
    there.broker.store.delete_topics([TOPIC])
    there.broker.fill(2)
    ((kind, detail),) = found(there)
    assert kind == "note published-behind"
    assert "generation 1 is older than the catalogue" in detail


def test_one_that_is_gone_or_damaged_is_damage(there: Elsewhere) -> None:
    there.publish()
    parts = there.broker.tier
    generations = parts.provider.generations("broker-a")
    assert generations is not None
    generations.create(2, b"nothing")
    ((kind, detail),) = found(there)
    assert kind == "damage published-damaged"
    assert "readers elsewhere cannot start from it" in detail
    generations.delete([1, 2])
    ((kind, _),) = found(there)
    assert kind == "damage published-missing"


def test_one_that_is_being_published_for_the_first_time_is_not_gone(there: Elsewhere) -> None:
    """The note of a publication is written first. The publication may come after the audit looked
    for it, but before the audit reads the note.
    """
    parts, config = there.broker.tier, there.broker.config
    looks: list[MetadataStore | None] = []

    def published() -> MetadataStore | None:
        looks.append(published_catalogue(config, parts.provider))
        if len(looks) == 1:
            there.publish()
        return looks[-1]

    report = audit(
        parts.metadata, parts.provider, config, there.broker.runtime, published=published
    )
    assert looks[0] is None
    assert report.is_clean
    assert len(looks) == 2
    note = parts.metadata.note(LINEAGE, "broker-a")
    assert isinstance(note, dict)
    assert was_published(note)
    assert not was_published({**note, "crc32c": None})
    assert was_published({**note, "crc32c": None, "generation": 2})
    assert not was_published(None)


class Meanwhile(ProviderWrapper):
    """A backend that changes during an audit: after a listing, or before an open."""

    def __init__(self, tier: GoldenTier) -> None:
        super().__init__(tier.provider, tier.runtime)
        self.listed: Callable[[ListedSegment], ListedSegment] | None = None
        self.opening: Callable[[], None] | None = None

    def list(self, prefix: str = "") -> Iterator[ListedSegment]:
        change, self.listed = self.listed, None
        found = self.inner.list(prefix)
        return found if change is None else map(change, found)

    def open(self, path: str, type: SegmentType, base: int) -> FileSegment:
        act, self.opening = self.opening, None
        if act is not None:
            act()
        return super().open(path, type, base)

    def audit(self, tier: GoldenTier) -> AuditReport:
        return audit(tier.metadata, self, tier.config, tier.runtime)


@pytest.mark.parametrize("rolls", [False, True])
def test_units_are_held_against_the_log_as_it_is_then(tier: GoldenTier, rolls: bool) -> None:
    """The listing shows the log before, and the queue after, an append by a writer."""
    log, queue = tier.row(Q, LOG, 41521), tier.row(Q, QUEUE, 1600)
    record = tier.file(Q, LOG, 0).read_bytes()[:200]
    base = log.end_offset if rolls else log.base_offset
    with tier.file(Q, LOG, base).open("ab") as file:
        file.write(record)
    with tier.file(Q, QUEUE, queue.base_offset).open("ab") as file:
        file.write(encode_unit(log_offset=log.end_offset, message_bytes=200, tags_code=0))

    def as_before(found: ListedSegment) -> ListedSegment:
        is_log = (found.path, found.type, found.base) == (log.path, LOG, log.base_offset)
        return replace(found, size=log.size) if is_log else found

    backend = Meanwhile(tier)
    backend.listed = as_before
    assert not backend.audit(tier).damage
    tier.file(Q, LOG, base).write_bytes(tier.file(Q, LOG, base).read_bytes()[:-1])
    assert [each.kind for each in backend.audit(tier).damage] == ["units-beyond-log"]


def test_what_has_grown_since_the_listing_is_no_damage(tier: GoldenTier) -> None:
    sizes = {LOG: 41521, QUEUE: 1600}

    def shorter(found: ListedSegment) -> ListedSegment:
        is_last = found.path == f"{BROKER}/{Q}" and found.base == sizes.get(found.type)
        return replace(found, size=found.size - 20) if is_last else found

    backend = Meanwhile(tier)
    backend.listed = shorter
    assert backend.audit(tier).is_clean


def test_what_expires_while_it_is_looked_at_is_no_damage(tier: GoldenTier) -> None:
    """Expiry deletes the rows first, and then the bytes."""

    def expire() -> None:
        for row in tier.metadata.segments(f"{BROKER}/{Q}"):
            tier.metadata.delete_segment(*row.key)
            tier.file(Q, row.type, row.base_offset).unlink()

    backend = Meanwhile(tier)
    backend.opening = expire
    assert not backend.audit(tier).damage


def test_a_queue_whose_units_expire_while_sizes_are_asked_for_is_no_damage(
    tier: GoldenTier,
) -> None:
    """Expiry begins the next segment of units, drops the units, and then the log."""
    row = tier.row(Q, QUEUE, 1600)

    def shorter(found: ListedSegment) -> ListedSegment:
        is_last = (found.path, found.type, found.base) == row.key
        return replace(found, size=found.size - 20) if is_last else found

    def expire_units() -> None:
        units = tier.metadata.segments(f"{BROKER}/{Q}", QUEUE)
        tier.metadata.put(replace(row, base_offset=row.end_offset, size=0))
        for each in units:
            tier.metadata.delete_segment(*each.key)
            tier.file(Q, QUEUE, each.base_offset).unlink()

    backend = Meanwhile(tier)
    backend.listed, backend.opening = shorter, expire_units
    assert not backend.audit(tier).damage


def test_what_is_deleted_since_the_listing_is_no_orphan(tier: GoldenTier) -> None:
    """The writer deletes the bytes first, and then the note about them."""
    doomed_segment(tier)

    def finished(found: ListedSegment) -> ListedSegment:
        if found.base == 99999:
            append_file.delete_pending(tier.provider, tier.metadata)
        return found

    backend = Meanwhile(tier)
    backend.listed = finished
    assert backend.audit(tier).findings == ()


def test_a_repair_reads_the_marks_no_more_often_if_there_are_many(
    tier: GoldenTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    notes = JsonMetadataStore.notes

    def counted(metadata: JsonMetadataStore, kind: str) -> Mapping[str, Json]:
        calls.append(kind)
        return notes(metadata, kind)

    counts = []
    for start in (0, 100):
        for number in range(start, start + 5 + start):
            key = f"{BROKER}/{Q}/COMMIT_LOG/{99999 + number}"
            tier.metadata.put_note(append_file.DELETION_NOTE, key, 1)
        with monkeypatch.context() as patch:
            patch.setattr(JsonMetadataStore, "notes", counted)
            report = tier.audit(repair=True)
        assert [each.repaired for each in report.findings] == [True] * (5 + start)
        counts.append(len(calls))
        calls.clear()
    assert counts[0] == counts[1]


def test_a_repair_looks_through_what_is_left_over_no_more_often_if_it_is_much(
    tier: GoldenTier,
) -> None:
    looks: list[int] = []

    class Looked(list[Leftover]):
        def __iter__(self) -> Iterator[Leftover]:
            looks.append(len(self))
            return super().__iter__()

    class Littered(ProviderWrapper):
        def leftovers(self, prefix: str = "") -> Sequence[Leftover]:
            return Looked(Leftover(kind="orphan", name=f"data/{n}") for n in range(count))

    counts = []
    for count in (5, 105):
        provider = Littered(tier.provider, tier.runtime)
        report = audit(tier.metadata, provider, tier.config, tier.runtime, repair=True)
        assert sum(each.repaired for each in report.findings) == count
        counts.append(len(looks))
        looks.clear()
    assert counts[0] == counts[1]


def longer(rows: list[SegmentRecord]) -> list[SegmentRecord]:
    return [*rows[:-1], replace(rows[-1], size=rows[-1].size + 1)]


def without_one(rows: list[SegmentRecord]) -> list[SegmentRecord]:
    return [rows[0], *rows[2:]]


def with_another(rows: list[SegmentRecord]) -> list[SegmentRecord]:
    return [*rows, replace(rows[-1], base_offset=rows[-1].base_offset + 5_000)]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (longer, "the catalogue's segment to"),
        (without_one, "lacks the segment at"),
        (with_another, "and the catalogue none"),
    ],
)
def test_what_age_does_not_explain_is_damage(
    there: Elsewhere,
    change: Callable[[list[SegmentRecord]], list[SegmentRecord]],
    told: str,
) -> None:
    metadata = there.broker.tier.metadata
    copy = MemoryMetadataStore(place="elsewhere", clock_ms=there.broker.runtime.clock.now_ms)
    rows = list(metadata.segments(PATH, LOG))
    assert len(rows) > 2
    copy.put(*metadata.topics(), *metadata.queues(), *change(rows))
    ((kind, detail), *_) = [each for each in found(there, copy) if "damage" in each[0]]
    assert kind == "damage published-differs"
    assert told in detail


def test_a_segment_without_bytes_may_be_gone_from_the_catalogue(there: Elsewhere) -> None:
    """A load takes it away before it puts its own segment there, and a queue that skips lost
    messages goes on with another."""
    metadata = there.broker.tier.metadata
    copy = MemoryMetadataStore(place="elsewhere", clock_ms=there.broker.runtime.clock.now_ms)
    rows = list(metadata.segments(PATH, LOG))
    empty = replace(rows[-1], base_offset=rows[-1].end_offset, size=0)
    copy.put(*metadata.topics(), *metadata.queues(), *rows, empty)
    ((kind, _),) = found(there, copy)
    assert kind == "note published-behind"


def test_another_number_of_a_topic_is_damage(there: Elsewhere) -> None:
    copy = MemoryMetadataStore(place="elsewhere", clock_ms=there.broker.runtime.clock.now_ms)
    copy.put(TopicRecord(topic=TOPIC, topic_id=9))
    kinds = [kind for kind, _ in found(there, copy)]
    assert "damage published-differs" in kinds


# Audit and rebuild of tiers that we wrote: in memory, and in an object store's double


CLUSTER = "DefaultCluster"
Inner = Callable[[Runtime], SegmentProvider]
Place = tuple[str, SegmentType, int]
TOPICS = ("TopicA", "TopicB")


@pytest.fixture
def objects() -> MemoryObjects:
    return MemoryObjects()


@pytest.fixture(params=["memory", "objects"])
def inner(request: pytest.FixtureRequest, objects: MemoryObjects) -> Inner:
    return MemoryProvider if request.param == "memory" else in_objects(objects)


def in_objects(objects: MemoryObjects) -> Inner:
    return lambda runtime: ObjectProvider(MemoryObjectClient(objects), CLUSTER, runtime)


def filled(folder: Path, inner: Inner) -> Lives:
    """Two topics with many segments, of which the oldest have expired and the last are open."""
    lives = Lives(folder, inner=inner)
    lives.open()
    for turn in range(3):
        for _ in range(9):
            for topic in TOPICS:
                lives.put(topic, turn % 2)
        lives.upload()
        lives.clock.advance(3_600_000 if turn == 0 else 1_000)
    return lives


def looked_at(lives: Lives, *, repair: bool = False) -> AuditReport:
    return audit(lives.metadata, lives.inner, lives.config, lives.runtime, repair=repair)


def places(metadata: MetadataStore) -> dict[Place, tuple[int, int | None, int | None]]:
    """The rows of segments with bytes; a rebuild from bytes cannot know the others."""
    return {
        (row.path, row.type, row.base_offset): (
            row.size,
            row.begin_timestamp,
            row.end_timestamp,
        )
        for row in metadata.segments()
        if row.size
    }


def test_a_tier_is_whole_at_any_time_of_its_life(tmp_path: Path, inner: Inner) -> None:
    lives = filled(tmp_path, inner)
    assert looked_at(lives).findings == ()
    lives.clock.advance(3 * 3_600_000)
    lives.put("TopicA")
    lives.upload()
    lives.expire()
    assert looked_at(lives).findings == ()
    lives.delete_topic("TopicB")
    assert looked_at(lives).findings == ()
    lives.open()
    assert looked_at(lives).findings == ()


def test_our_own_tier_is_rebuilt_from_its_bytes(tmp_path: Path, inner: Inner) -> None:
    lives = filled(tmp_path, inner)
    found = FaultyCatalogue(Tables(), Faults())
    report = rebuild(found, lives.inner, lives.config, lives.runtime)
    assert report.problems == ()
    assert places(found) == places(lives.metadata)
    assert set(report.topics) == set(TOPICS)
    assert {row.key for row in found.queues()} == {row.key for row in lives.metadata.queues()}
    assert audit(found, lives.inner, lives.config, lives.runtime).findings == ()

"""What is beside a log and not named by it, what is damaged in it, and which logs exist."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.providers.object_kit import CLUSTER, PATH, Bucket, Process
from tieredstore.driver.object_client import ObjectFacts
from tieredstore.driver.provider import LOAD_MS_MAX, Leftover
from tieredstore.driver.runtime import ManualClock, Runtime
from tieredstore.model.values import SegmentType
from tieredstore.roundlog import inspection, upkeep
from tieredstore.roundlog.inspection import DEAD, ORPHAN, STATE
from tieredstore.roundlog.layout import log_name, state_name
from tieredstore.roundlog.log import BrokerLog
from tieredstore.roundlog.object_calls import ObjectCalls
from tieredstore.roundlog.state import LogState

LOG = SegmentType.COMMIT_LOG
BROKER = "broker-a"


@pytest.fixture(autouse=True)
def _busy_background(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "ROUNDS_MERGED", 4)
    monkeypatch.setattr(upkeep, "STATE_EVERY", 8)


class Lived:
    """A tier that has merged, written states and released for longer than readers may lag."""

    def __init__(self) -> None:
        self.bucket, self.runtime = Bucket(), Runtime.inline()
        self.writer = self.bucket.process(runtime=self.runtime)
        self.live(0, 60)

    def live(self, begin: int, end: int) -> None:
        segment, clock = self.writer.open(PATH, LOG, 0), self.runtime.clock
        assert isinstance(clock, ManualClock)
        for position in range(begin, end):
            segment.write(position, b"x")
            clock.advance(60_000)
            while self.writer.provider.tend(BROKER):
                pass

    def reader(self) -> Process:
        return self.bucket.process(runtime=self.runtime)

    def found(self) -> list[Leftover]:
        by_writer = list(self.writer.provider.leftovers(BROKER))
        assert by_writer == list(self.reader().provider.leftovers(BROKER))
        return by_writer

    def put(self, name: str) -> str:
        key = self.writer.provider._log_of(BROKER).key(name)
        self.bucket.objects.put(key, b"orphan", {})
        return key


def test_a_tier_at_work_has_no_orphans() -> None:
    lived = Lived()
    assert {each.kind for each in lived.found()} <= {DEAD}
    lived.writer.provider.remove_leftovers(lived.found())
    assert lived.found() == []
    assert list(lived.reader().provider.damage(BROKER)) == []
    assert lived.reader().open(PATH, LOG, 0).read(0, 60) == b"x" * 60
    lived.live(60, 120)
    assert lived.reader().open(PATH, LOG, 0).read(0, 120) == b"x" * 120
    assert list(lived.reader().provider.damage(BROKER)) == []


def test_what_was_released_while_it_was_looked_for_is_not_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lived = Lived()
    log = lived.reader().provider._log_of(BROKER)
    follow, head = BrokerLog.follow, ObjectCalls.head
    lives = [(60, 62), (62, 140)]

    def followed(self: BrokerLog) -> LogState:
        if self is log and len(lives) == 2:  # after the listing
            lived.live(*lives.pop(0))
        return follow(self)

    def headed(self: ObjectCalls, key: str) -> ObjectFacts | None:
        if self is log.calls and len(lives) == 1:
            lived.live(*lives.pop(0))
        return head(self, key)

    monkeypatch.setattr(BrokerLog, "follow", followed)
    monkeypatch.setattr(ObjectCalls, "head", headed)
    assert inspection.damage(log) == []
    assert lives == []


def test_a_tier_that_has_just_begun_has_nothing_left_over() -> None:
    bucket, runtime = Bucket(), Runtime.inline()
    writer = bucket.process(runtime=runtime)
    writer.open(PATH, LOG, 0).write(0, b"x")
    clock = runtime.clock
    assert isinstance(clock, ManualClock)
    for _ in range(2):
        assert list(writer.provider.leftovers(BROKER)) == []
        assert list(bucket.process(runtime=runtime).provider.leftovers(BROKER)) == []
        clock.advance(upkeep.GRACE_MS + 1)  # a reader still begins at the first entry


def test_what_nothing_names_is_found_and_removed() -> None:
    lived = Lived()
    lived.writer.provider.remove_leftovers(lived.found())
    kept = lived.put("data/0000000001-of-this-epoch")  # its writer may be about to name it
    of_before = lived.put("data/0000000000-of-one-before")
    entry = lived.put(log_name(1))  # deleted long ago, and sent again
    old = lived.put(state_name(2))
    lived.put("data/another-name")
    assert {(each.kind, each.name) for each in lived.found()} == {
        (ORPHAN, of_before),
        (ORPHAN, entry),
        (STATE, old),
    }
    lived.writer.provider.remove_leftovers(lived.found())
    assert lived.found() == []
    assert kept in lived.bucket.objects.held
    next_writer = lived.reader()
    next_writer.provider.claim(BROKER)
    assert [each.name for each in next_writer.provider.leftovers(BROKER)] == [kept]
    assert [each.name for each in next_writer.provider.leftovers()] == [kept]
    assert list(next_writer.provider.leftovers("broker-b")) == []


def test_abandoned_uploads_are_leftovers() -> None:
    lived = Lived()
    lived.writer.provider.remove_leftovers(lived.found())
    for key in (lived.writer.open(PATH, LOG, 9).path, lived.put("data/0000000001-a")):
        lived.bucket.objects.begin_upload(key)
    found = lived.found()
    assert [each.kind for each in found] == ["abandoned-upload"] * 2
    lived.writer.provider.remove_leftovers(found)
    assert lived.found() == []
    assert not lived.bucket.objects.uploads


@pytest.mark.parametrize("below", [".rounds", ".staged"])
def test_an_upload_of_a_load_may_be_under_way_for_a_day(below: str) -> None:
    """Loads hold no lock, and a claim does not end them."""
    lived = Lived()
    lived.writer.provider.remove_leftovers(lived.found())
    now_ms = lived.runtime.clock.now_ms()
    place = lived.writer.provider._log_of(BROKER).prefix.removeprefix(".rounds")
    names = [f"load/run/{staged_ms:013d}.x" for staged_ms in (now_ms, now_ms - LOAD_MS_MAX)]
    young, old = (lived.bucket.objects.begin_upload(f"{below}{place}{name}") for name in names)
    found = [each for each in lived.found() if each.kind == "abandoned-upload"]
    assert [each.name for each in found] == [old.key]
    lived.writer.provider.remove_leftovers(found)
    assert [*lived.bucket.objects.uploads.values()] == [young]


def test_an_upload_of_staged_data_is_a_leftover_and_one_of_another_cluster_is_none() -> None:
    lived = Lived()
    place = lived.writer.provider._log_of(BROKER).prefix.removeprefix(".rounds")
    directory = place.strip("/").partition("/")[0]
    ours = lived.bucket.objects.begin_upload(f".staged{place}reindex/run/keys")
    theirs = place.replace(directory, "0123abcd_other")
    for below in (".rounds", ".staged"):
        lived.bucket.objects.begin_upload(f"{below}{theirs}data/0000000001-a")
    for found in (lived.found(), lived.writer.provider.leftovers()):
        assert [each.name for each in found if each.kind == "abandoned-upload"] == [ours.key]


@pytest.mark.parametrize("kind", ["log", "state"])
def test_a_damaged_entry_or_state_is_damage(kind: str) -> None:
    lived = Lived()
    key = max(key for key in lived.bucket.objects.held_keys() if f"/{kind}/" in key)
    with lived.bucket.objects.guard:
        data, facts = lived.bucket.objects.held[key]
        lived.bucket.objects.held[key] = data[:60] + bytes([data[60] ^ 1]) + data[61:], facts
    for process in (lived.reader(), lived.writer):
        assert key in {each.where for each in process.provider.damage(BROKER)}


def test_a_data_object_that_is_gone_or_cut_short_is_damage() -> None:
    lived = Lived()
    state = lived.writer.provider._log_of(BROKER).state()
    key = next(
        key
        for key in lived.bucket.objects.held_keys()
        if key.partition(f"{BROKER}/")[2] in state.names() and "/data/" in key
    )
    with lived.bucket.objects.guard:
        lived.bucket.objects.held.pop(key)
    (found,) = lived.reader().provider.damage(BROKER)
    assert (found.kind, found.where, found.is_damage) == ("missing", key, True)
    lived.bucket.objects.put(key, b"", {})
    (found,) = lived.writer.provider.damage(BROKER)
    assert (found.kind, found.where) == ("size", key)


def test_the_places_of_a_bucket_are_its_logs() -> None:
    bucket = Bucket()
    assert bucket.process().provider.places() is None
    for broker in ("broker-b", "broker-a", "broker", "broker-a.b", "主"):
        bucket.process().provider.claim(broker)
    reader = bucket.process()
    assert reader.provider.places() == [
        (CLUSTER, broker) for broker in ("broker", "broker-a", "broker-a.b", "broker-b", "主")
    ]
    assert reader.requests == {"list": 8}  # one for each name, and one more at each level
    reader.provider.probe()
    assert len(reader.provider.places() or ()) == 5


def test_what_was_appended_is_told_as_far_back_as_the_log_is_kept() -> None:
    """One round a minute, with merges and states: all entries count."""
    lived = Lived()
    spans = lived.reader().provider.appended(BROKER)
    kept = [key for key in lived.bucket.objects.held_keys() if "/log/" in key]
    assert sum(span.entry_count for span in spans) == len(kept) - 1  # between the first and last
    assert all(before.end_ms == after.begin_ms for before, after in pairwise(spans))
    assert spans[-1].end_ms <= lived.runtime.clock.now_ms()
    assert spans[-1].end_ms - spans[0].begin_ms >= 10 * 60_000
    assert all(span.size > 0 for span in spans)
    assert list(lived.writer.provider.appended("nobody")) == []


def test_many_entries_are_told_in_few_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    lived = Lived()
    whole = lived.reader().provider.appended(BROKER)
    monkeypatch.setattr(inspection, "SPANS_MAX", 3)
    few = lived.reader().provider.appended(BROKER)
    assert len(few) <= 3 + 1
    assert sum(span.entry_count for span in few) == sum(span.entry_count for span in whole)
    assert sum(span.size for span in few) == sum(span.size for span in whole)

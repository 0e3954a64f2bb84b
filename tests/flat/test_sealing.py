"""Full segments in an object store: the queue rolls by itself, and a restart finds what to seal."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.flat.store_kit import KEY, LOG, PATH, QUEUE, Tier, append, content, unplaced
from tests.flat.tiers import numbered, run_of
from tests.providers.object_kit import CLUSTER
from tieredstore.access.upkeep import roll_unsealed, seal_full
from tieredstore.driver.provider import SegmentProvider
from tieredstore.driver.runtime import Runtime
from tieredstore.flat.message_file import FlatMessageFile
from tieredstore.flat.recovery import confirm, recover
from tieredstore.model.errors import (
    BackendUnavailableError,
    SegmentCorruptError,
    SegmentSealedError,
)
from tieredstore.providers.object_provider import ObjectProvider
from tieredstore.roundlog.entry import Entry
from tieredstore.testing.faults import Fault, Faults
from tieredstore.testing.memory_objects import MemoryObjectClient, MemoryObjects

MESSAGES = 3  # in a segment


def a_provider(objects: MemoryObjects) -> ObjectProvider:
    return ObjectProvider(MemoryObjectClient(objects), CLUSTER, Runtime.inline())


class ObjectTier(Tier):
    """A tier in an object store with segments of three messages; a new process can reopen it."""

    def __init__(self) -> None:
        self.objects = MemoryObjects()
        super().__init__(
            provider=a_provider(self.objects),
            log_bytes=MESSAGES * 172,
            queue_units=MESSAGES,
        )

    def restart(self) -> None:
        self.inner: SegmentProvider = a_provider(self.objects)

    def unsealed(self) -> list[str]:
        """The paths that the unsealed segments will get."""
        provider = a_provider(self.objects)
        paths = [provider.open(each.path, each.type, each.base).path for each in provider.list()]
        return [path for path in paths if path not in self.objects.held]


def put(file: FlatMessageFile, first: int, count: int) -> None:
    """Commit messages one by one."""
    for record in numbered(first, count):
        append(file, [record])


def expected(count: int) -> dict[int, bytes]:
    return {number: unplaced(record) for number, record in enumerate(numbered(0, count))}


def test_a_file_rolls_when_its_segment_is_full() -> None:
    tier = ObjectTier()
    file = tier.file()
    put(file, 0, 10)
    assert len(file.log.segments) == len(file.queue.segments) == 4
    assert content(file) == expected(10)
    tier.restart()
    again = tier.file()
    put(again, 10, 5)
    assert content(again) == expected(15)


def test_a_roll_leaves_the_sealing_to_the_background() -> None:
    tier = ObjectTier()
    file = tier.file()
    put(file, 0, 7)
    assert len(tier.unsealed()) == 6
    assert seal_full([file], tier.inner) == {}
    assert len(tier.unsealed()) == 2  # the two that are being written
    assert content(file) == expected(7)
    put(file, 7, 3)
    assert content(file) == expected(10)


def test_what_was_not_sealed_is_found_again_after_a_restart() -> None:
    tier = ObjectTier()
    put(tier.file(), 0, 7)
    tier.restart()
    file = tier.file()
    assert seal_full([file], tier.inner) == {}
    assert len(tier.unsealed()) == 2
    tier.restart()
    assert content(tier.file()) == expected(7)


def test_a_segment_that_fails_is_named_and_keeps_no_other_from_being_sealed() -> None:
    tier = ObjectTier()
    file = tier.file()
    put(file, 0, 7)
    tier.restart()
    entries = sorted(key for key in tier.objects.held_keys(".rounds/") if "/log/" in key)
    broken = entries[1]  # the first message: entry 0 begins the epoch
    with tier.objects.guard:
        data, facts = tier.objects.held[broken]
        entry = Entry.decoded(data, broken)
        whole = data[: entry.payload_start] + b"?" * entry.payload_bytes
        tier.objects.held[broken] = whole, facts
    file = tier.file()
    failures = seal_full([file], tier.inner)
    assert {type(each) for each in failures.values()} == {SegmentCorruptError}
    first = {tier.inner.open(PATH, kind, 0).path for kind in (LOG, QUEUE)}
    assert failures.keys() <= first
    assert set(tier.unsealed()) - failures.keys() != set()
    assert seal_full([file], tier.inner).keys() == failures.keys()


def test_whatever_is_written_rolls_where_all_is_to_be_sealed() -> None:
    tier = ObjectTier()
    file = tier.file()
    put(file, 0, 2)
    assert roll_unsealed(file)
    assert seal_full([file], tier.inner) == {}
    assert tier.unsealed() == []
    assert roll_unsealed(file)  # rolls nothing: no bytes were written since
    assert len(file.log.segments) == 2
    assert content(file) == expected(2)
    put(file, 2, 3)
    assert content(file) == expected(5)
    tier.restart()
    assert content(tier.file()) == expected(5)


def test_nothing_rolls_while_something_waits_or_where_nothing_is_to_be_sealed() -> None:
    tier = ObjectTier()
    file = tier.file()
    file.append(run_of(0, numbered(0, 1)))
    assert not roll_unsealed(file)
    assert file.commit()
    assert roll_unsealed(file)
    plain = Tier().file()
    append(plain, numbered(0, 3))
    assert roll_unsealed(plain)
    assert len(plain.log.segments) == 1


def test_nothing_rolls_while_messages_are_to_be_compared_with_the_local_ones() -> None:
    tier = ObjectTier()
    put(tier.file(), 0, 2)
    for kind in (LOG, QUEUE):
        (row,) = tier.rows(kind)
        tier.catalogue().put(replace(row, size=0, begin_timestamp=None, end_timestamp=None))
    tier.restart()
    file = tier.file()
    assert file.unconfirmed_from == 0
    assert not roll_unsealed(file)
    assert len(file.log.segments) == len(file.queue.segments) == 1
    confirm(file, tier.catalogue())
    assert roll_unsealed(file)
    assert len(file.log.segments) == 2


def test_nothing_rolls_or_skips_while_it_is_not_known_what_has_landed() -> None:
    tier = Tier(log_bytes=1 << 20)
    faults = Faults()
    file = tier.file(faults)
    append(file, numbered(0, 2))
    file.append(run_of(2, numbered(2, 2)))
    faults.strike(Fault.AFTER, after=1)  # both writes land
    with pytest.raises(BackendUnavailableError):
        file.commit()
    faults.forgive()
    assert file.discard()
    tier.clock.advance(48 * 3_600_000)
    assert not roll_unsealed(file)
    assert not file.roll_if_due()
    with pytest.raises(ValueError, match="what has landed"):
        file.skip_to(10)
    recover(file, tier.catalogue(), tier.clock)
    assert content(file) == expected(4)
    file.skip_to(10)
    assert content(tier.file()) == expected(4)


def test_the_file_goes_on_behind_a_segment_that_somebody_sealed() -> None:
    tier = ObjectTier()
    file = tier.file()
    put(file, 0, 2)
    for kind in (LOG, QUEUE):
        tier.inner.open(PATH, kind, 0).seal()
    put(file, 2, 2)
    assert len(file.log.segments) == 2
    assert content(file) == expected(4)


@pytest.mark.parametrize("kind", [LOG, QUEUE])
def test_a_commit_that_is_refused_for_good_is_repeated_in_a_next_segment(kind: object) -> None:
    tier = ObjectTier()
    file = tier.file()
    put(file, 0, 2)
    file.append(run_of(2, numbered(2, 1)))
    sealed = file.log if kind is LOG else file.queue
    tier.inner.open(PATH, sealed.type, 0).seal()
    with pytest.raises(SegmentSealedError):
        file.commit()
    assert file.commit()
    assert len(sealed.segments) == 2
    put(file, 3, 2)
    assert content(file) == expected(5)
    tier.restart()
    assert content(tier.file()) == expected(5)
    assert tier.open().get(KEY) is not None


def test_a_reader_elsewhere_follows_the_writer() -> None:
    tier = ObjectTier()
    file = tier.file()
    put(file, 0, 2)
    tier.restart()
    reader = tier.open(read_only=True)
    followed = reader.get(KEY)
    assert followed is not None
    assert content(followed) == expected(2)
    for first in (2, 4, 6):
        put(file, first, 2)
        reader.refresh()
        assert followed.problem is None
        assert content(followed) == expected(first + 2)
    assert roll_unsealed(file)
    assert seal_full([file], tier.inner) == {}
    assert content(followed) == expected(8)
    reader.refresh()
    assert content(followed) == expected(8)

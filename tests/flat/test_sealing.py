"""Full segments of an object store: the queue rolls by itself, and sealing is found again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.flat.store_kit import KEY, LOG, PATH, QUEUE, Tier, append, content, unplaced
from tests.flat.tiers import numbered, run_of
from tests.providers.object_kit import CLUSTER
from tieredstore.access.upkeep import roll_unsealed, seal_full
from tieredstore.codec.names import segment_name
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
from tieredstore.testing.faults import Fault, Faults
from tieredstore.testing.memory_objects import MemoryObjectClient, MemoryObjects


def a_provider(objects: MemoryObjects, *, parts_max: int = 3) -> ObjectProvider:
    client = MemoryObjectClient(objects)
    return ObjectProvider(client, CLUSTER, Runtime.inline(), parts_max=parts_max)


class ObjectTier(Tier):
    """Each file is that of a new process."""

    def __init__(self, *, parts_max: int = 3) -> None:
        self.objects = MemoryObjects()
        self._parts_max = parts_max
        super().__init__(provider=a_provider(self.objects, parts_max=parts_max))

    def restart(self) -> None:
        self.inner: SegmentProvider = a_provider(self.objects, parts_max=self._parts_max)

    def parts(self) -> list[str]:
        """But for the marks of a segment that was sealed after an earlier process wrote to it."""
        return [key for key in self.objects.held_keys(".parts/") if "/sealed-" not in key]


def put(file: FlatMessageFile, first: int, count: int) -> None:
    """A commit for each message."""
    for record in numbered(first, count):
        append(file, [record])


def expected(count: int) -> dict[int, bytes]:
    return {number: unplaced(record) for number, record in enumerate(numbered(0, count))}


def test_a_file_rolls_when_its_segment_takes_no_more_parts() -> None:
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
    assert len(tier.parts()) == 14
    assert seal_full(file) == {}
    assert len(tier.parts()) == 2  # of the two that are being written
    assert content(file) == expected(7)
    put(file, 7, 3)
    assert content(file) == expected(10)


def test_what_was_not_sealed_is_found_again_after_a_restart() -> None:
    tier = ObjectTier()
    put(tier.file(), 0, 7)
    tier.restart()
    file = tier.file()
    assert seal_full(file) == {}
    assert len(tier.parts()) == 2
    tier.restart()
    assert content(tier.file()) == expected(7)


def test_a_segment_that_fails_is_named_and_keeps_no_other_from_being_sealed() -> None:
    tier = ObjectTier()
    file = tier.file()
    put(file, 0, 7)
    tier.restart()
    broken = next(key for key in tier.parts() if f"{LOG.name}/{segment_name(0)}/" in key)
    with tier.objects.guard:
        data, facts = tier.objects.held[broken]
        tier.objects.held[broken] = b"?" * len(data), facts
    file = tier.file()
    failures = seal_full(file)
    assert [type(each) for each in failures.values()] == [SegmentCorruptError]
    (path,) = failures
    assert f".parts/{path}/" in broken
    assert [key for key in tier.parts() if path not in key] != []
    assert seal_full(file).keys() == {path}


def test_whatever_is_written_rolls_where_all_is_to_be_sealed() -> None:
    tier = ObjectTier()
    file = tier.file()
    put(file, 0, 2)
    assert roll_unsealed(file)
    assert seal_full(file) == {}
    assert tier.parts() == []
    assert roll_unsealed(file)  # nothing was written since: no further segment
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
    faults.strike(Fault.AFTER, after=1)  # both have landed
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
    assert seal_full(file) == {}
    assert content(followed) == expected(8)
    reader.refresh()
    assert content(followed) == expected(8)

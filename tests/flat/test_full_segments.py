"""A full segment that the backend has lost: the queue says so and takes no more."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.flat.store_kit import KEY, LOG, QUEUE, Tier, append, content, unplaced
from tests.flat.tiers import numbered, run_of
from tieredstore.driver.metadata import Put
from tieredstore.flat.message_file import FlatMessageFile
from tieredstore.flat.recovery import recover
from tieredstore.model.errors import BackendRefusedError, OffsetOutOfRangeError, SegmentError
from tieredstore.model.values import SegmentType
from tieredstore.testing.faults import Fault, Faults
from tieredstore.testing.samples import a_record

COUNT = 8
KINDS = pytest.mark.parametrize("kind", [LOG, QUEUE])


def a_rolled_tier() -> Tier:
    """Four segments of two messages in either file."""
    tier = Tier(queue_units=2, log_bytes=len(numbered(0, 1)[0]) * 2)
    append(tier.file(), numbered(0, COUNT))
    assert len(tier.rows(LOG)) == len(tier.rows(QUEUE)) == 4
    return tier


def opened(tier: Tier, faults: Faults | None = None, *, read_only: bool = False) -> FlatMessageFile:
    file = tier.open(faults, read_only=read_only).get(KEY)
    assert file is not None
    return file


def lose(tier: Tier, kind: SegmentType, index: int, *, keep: int = 0) -> None:
    """The backend has only the first bytes of this segment, or nothing of it."""
    row = tier.rows(kind)[index]
    with tier.inner.open(row.path, kind, row.base_offset) as segment:
        data = segment.read(0, keep)
        segment.delete()
        if keep:
            segment.write(0, data)


def readable(file: FlatMessageFile) -> set[int]:
    found = set()
    for offset in range(COUNT):
        try:
            unit = file.units(offset, 1)
            record = file.log.read(int(unit.log_offsets[0]), int(unit.message_bytes[0]))
        except (SegmentError, OffsetOutOfRangeError):
            continue
        assert unplaced(record) == unplaced(a_record(offset, body_bytes=20))
        found.add(offset)
    return found


@KINDS
@pytest.mark.parametrize("index", [0, 1, 2])
def test_one_that_is_gone_is_named_and_the_queue_takes_nothing_more(
    kind: SegmentType, index: int
) -> None:
    tier = a_rolled_tier()
    rows = [*tier.rows(LOG), *tier.rows(QUEUE)]
    lose(tier, kind, index)
    file = opened(tier)
    assert file.problem is not None
    size = tier.rows(kind)[index].size
    assert file.problem.endswith(f": {size} bytes that were committed are gone")
    assert kind.name in file.problem
    assert readable(file) == set(range(COUNT)) - {2 * index, 2 * index + 1}
    with pytest.raises(BackendRefusedError):
        file.append(run_of(COUNT, numbered(COUNT, 1)))
    assert [*tier.rows(LOG), *tier.rows(QUEUE)] == rows


@KINDS
def test_one_that_is_short_too(kind: SegmentType) -> None:
    tier = a_rolled_tier()
    size = tier.rows(kind)[1].size
    lose(tier, kind, 1, keep=size // 2)
    file = opened(tier)
    assert file.problem is not None
    assert f"{size - size // 2} bytes that were committed are gone" in file.problem
    assert readable(file) == set(range(COUNT)) - {3}


def test_a_whole_queue_goes_on_and_is_looked_at_once() -> None:
    tier = a_rolled_tier()
    faults = Faults()
    file = opened(tier, faults)
    assert (file.problem, faults.steps) == (None, 3)  # two ends and a listing
    recover(file, tier.catalogue(), tier.clock)
    assert faults.steps == 5
    append(file, numbered(COUNT, 4))
    before = faults.steps
    for steps in (3, 5):  # what rolled since is new
        recover(file, tier.catalogue(), tier.clock)
        assert faults.steps == before + steps
    assert len(content(opened(tier))) == COUNT + 4


def test_one_that_came_back_lets_the_queue_go_on() -> None:
    tier = a_rolled_tier()
    row = tier.rows(LOG)[1]
    data = tier.held(LOG)[row.base_offset]
    lose(tier, LOG, 1)
    file = opened(tier)
    assert "are gone" in str(file.problem)
    tier.damage(LOG, row.base_offset, data)
    recover(file, tier.catalogue(), tier.clock)
    assert file.problem is None
    append(file, numbered(COUNT, 2))
    assert len(content(opened(tier))) == COUNT + 2


def test_a_backend_that_cannot_list_leaves_the_queue_for_later() -> None:
    tier = a_rolled_tier()
    tier.catalogue().apply([Put(replace(tier.catalogue().queues()[0], queue_id=1))])
    store = tier.open(Faults({2: Fault.BEFORE}))
    file = store.get(KEY)
    assert file is not None
    assert str(file.problem).startswith("not recovered: ")
    assert store.retry_recovery() == 0
    assert file.problem is None


def test_a_reader_does_not_list() -> None:
    tier = a_rolled_tier()
    lose(tier, LOG, 1)
    faults = Faults()
    file = opened(tier, faults, read_only=True)
    assert (file.problem, faults.steps) == (None, 2)
    assert readable(file) == {0, 1, 4, 5, 6, 7}

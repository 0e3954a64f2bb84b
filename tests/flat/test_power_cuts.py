"""After a power cut, a directory may have zeros in place of bytes that were not synced."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from tests.every_step import every_step
from tests.flat.store_kit import KEY, LOG, QUEUE, Tier, append, content
from tests.flat.test_recovery import expected, goes_on, last_bytes, put_back
from tests.flat.tiers import numbered
from tieredstore.driver.runtime import Runtime
from tieredstore.flat.message_file import FlatMessageFile
from tieredstore.flat.reading import read_run
from tieredstore.model.errors import BackendUnavailableError, MetadataError, SegmentCorruptError
from tieredstore.providers.posix import PosixProvider
from tieredstore.testing.faults import Fault, Faults
from tieredstore.testing.samples import STORE_TIMESTAMP, a_record

WRITTEN, COMMITTED = 60, 20  # 1200 bytes of units: the sectors of 512 end within units 25 and 51
LAST_SECTOR = slice(1024, 1200)


def a_cut_tier(folder: Path, place: slice, *, committed: int = COMMITTED) -> Tier:
    """The units after the committed ones were being written when the power failed; the bytes at
    `place` are zeros.
    """
    runtime = Runtime.inline(now_ms=STORE_TIMESTAMP)
    tier = Tier(provider=PosixProvider(folder, "cluster-a", runtime))
    append(tier.file(), numbered(0, WRITTEN))
    base, units = last_bytes(tier, QUEUE)
    tier.damage(QUEUE, base, blanked(units, place))
    put_back(tier, QUEUE, size=committed * 20)
    put_back(tier, LOG, size=sum(map(len, numbered(0, committed))))
    return tier


def reader_of(tier: Tier) -> FlatMessageFile:
    file = tier.open(read_only=True).get(KEY)
    assert file is not None
    return file


def blanked(units: bytes, place: slice) -> bytes:
    data = bytearray(units)
    data[place] = bytes(len(data[place]))
    return bytes(data)


@pytest.mark.parametrize(
    ("place", "count"),
    [
        (LAST_SECTOR, 51),
        (slice(512, 1200), 25),  # of unit 25, the first 12 bytes are there, but not the tags
        (slice(512, 1024), 25),  # later units are there
        (slice(400, 512), 20),
        (slice(400, 1200), 20),
        (slice(1180, 1200), 59),
        (slice(1192, 1200), 59),
        (slice(1180, 1188), 59),  # only the log offset is lost
        (slice(1188, 1192), 59),  # only the length is lost
    ],
)
def test_units_that_a_power_cut_kept_from_the_disk_were_never_there(
    tmp_path: Path, place: slice, count: int
) -> None:
    tier = a_cut_tier(tmp_path, place)
    file = tier.file()
    assert (file.problem, file.commit_offset) == (None, count)
    assert content(file) == expected(*range(count))
    assert len(tier.held(QUEUE)[0]) == count * 20
    goes_on(tier, 70)
    assert [each.base for each in tier.file().queue.segments] == [0]


def test_nor_where_none_of_a_segment_was_committed(tmp_path: Path) -> None:
    tier = a_cut_tier(tmp_path, slice(0, 512), committed=0)
    file = tier.file()
    assert (file.problem, file.commit_offset) == (None, 0)
    assert tier.held(QUEUE) == {}
    goes_on(tier, 70)


def test_a_message_without_tags_has_none_in_its_unit() -> None:
    tier = Tier()
    records = [a_record(n, properties={}) for n in range(6)]
    append(tier.file(), records)
    put_back(tier, QUEUE, size=0)
    put_back(tier, LOG, size=0)
    assert tier.file().commit_offset == 6


def test_what_was_committed_is_never_given_up(tmp_path: Path) -> None:
    tier = a_cut_tier(tmp_path, slice(1000, 1200), committed=55)
    base, units = last_bytes(tier, QUEUE)
    file = tier.file()
    assert file.problem is not None
    assert "messages 50 to 54 are in the log" in file.problem
    assert last_bytes(tier, QUEUE) == (base, units)


def test_who_only_reads_tells_zeros_at_the_end_from_damage_before_it(tmp_path: Path) -> None:
    tier = a_cut_tier(tmp_path, LAST_SECTOR)
    file = reader_of(tier)
    assert (file.problem, file.commit_offset) == (None, 51)
    assert len(tier.held(QUEUE)[0]) == WRITTEN * 20
    base, units = last_bytes(tier, QUEUE)
    tier.damage(QUEUE, base, blanked(units, slice(500, 520)))
    file = reader_of(tier)
    assert (file.problem, file.commit_offset) == (None, 51)
    with pytest.raises(SegmentCorruptError):
        read_run(file, 25, count_max=1, bytes_max=1)


def test_a_recovery_that_fails_is_done_again(tmp_path: Path) -> None:
    def fails_at(step: int) -> bool:
        tier = a_cut_tier(tmp_path / f"{step}", LAST_SECTOR)
        faults = Faults({step: Fault.BEFORE})
        with suppress(BackendUnavailableError, MetadataError):
            tier.open(faults).create(*KEY)
        assert tier.file().commit_offset == 51
        goes_on(tier, 62)
        return faults.steps > step

    assert every_step(fails_at) >= 10

"""One consume queue: bad input, failing writes, syncs, and the tags codes that are addresses."""

from __future__ import annotations

import os

import pytest

from tests.local.queues.queue_fixtures import (
    Opener,
    directory,
    numbers,
    put,
    reopen,
    whole,
)
from tieredstore.local.consume_queue import matching_tags
from tieredstore.model.errors import OffsetOutOfRangeError

__all__ = ["directory", "reopen"]  # fixtures


def test_bad_input_is_refused_with_what_is_wrong(reopen: Opener) -> None:
    queue = reopen()
    put(queue, 0, 3)
    with pytest.raises(ValueError, match="queue_offset"):
        queue.put(-1, [900], [1], [1])
    with pytest.raises(ValueError, match="count"):
        queue.units(0, -1)
    for offset in (-1, 3, 2**70):
        with pytest.raises(OffsetOutOfRangeError):
            queue.unit(offset)
    for offset in (-1, 4):
        with pytest.raises(OffsetOutOfRangeError):
            queue.units(offset, 1)
    assert queue.put(3, [], [], []) == 0


@pytest.mark.parametrize("count", [3, 60])
@pytest.mark.parametrize(
    ("place", "log_offset", "size", "tags", "name"),
    [
        (1, 5000 - 1, 100, 0, "log_offset"),
        (0, -1, 100, 0, "log_offset"),
        (1, 5100, 0, 0, "message_bytes"),
        (1, 5100, -5, 0, "message_bytes"),
        (2, 5200, 2**31, 0, "message_bytes"),
        (2, 5200, 100, 2**63, "tags_code"),
    ],
)
def test_columns_that_are_no_records_in_log_order_are_refused(
    reopen: Opener, count: int, place: int, log_offset: int, size: int, tags: int, name: str
) -> None:
    queue = reopen()
    put(queue, 0, 3)
    columns = [
        [5000 + 100 * number for number in range(count)],
        [100] * count,
        [0] * count,
    ]
    columns[0][place], columns[1][place], columns[2][place] = log_offset, size, tags
    with pytest.raises(ValueError, match=name):
        queue.put(3, *columns)
    with pytest.raises(ValueError, match="different lengths"):
        queue.put(3, columns[0], columns[1][:-1], columns[2])
    assert queue.max_offset == 3
    assert reopen().max_offset == 3


def test_a_put_that_fails_halfway_is_made_up_for_by_the_next(
    reopen: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = reopen()
    put(queue, 0, 5)

    def refuse(descriptor: int, size: int) -> None:
        raise OSError(28, "no space left")

    with monkeypatch.context() as patch:
        patch.setattr(os, "ftruncate", refuse)
        with pytest.raises(Exception, match="no space left"):
            put(queue, 5, 20)
    assert queue.max_offset == 5
    assert reopen().max_offset in (5, 10)
    assert put(queue, 5, 20) == 20
    assert whole(queue) == numbers(*range(25))


def test_what_is_flushed_is_synced_without_a_flush_of_the_map(
    reopen: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = reopen()
    synced: list[str] = []
    fdatasync = os.fdatasync

    def watch(descriptor: int) -> None:
        synced.append(os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")))
        fdatasync(descriptor)

    put(queue, 0, 25)
    monkeypatch.setattr(os, "fdatasync", watch)
    queue.flush()
    assert synced == [f"{start:020d}" for start in (0, 200, 400)]
    queue.flush()
    assert len(synced) == 3
    put(queue, 25)
    queue.flush()
    assert synced[3:] == [f"{400:020d}"]


def test_extension_addresses_are_kept_and_match_every_tag(reopen: Opener) -> None:
    queue = reopen()
    tags = [-(2**63) + 5, -(2**31) - 1, -(2**31), 7, 7 + 2**32, 8]
    queue.put(0, range(0, 600, 100), [100] * 6, tags)
    units = reopen().units(0, 6)
    assert units.tags_codes.tolist() == tags
    assert matching_tags(units, [7]).tolist() == [True, True, False, True, True, False]
    assert matching_tags(units, [-(2**31)]).tolist() == [True, True, True, False, False, False]
    assert matching_tags(units, [2**31]).tolist() == [True, True, True, False, False, False]
    assert matching_tags(units, []).tolist() == [True, True, False, False, False, False]
    many = [7, *range(1000, 1020)]
    assert matching_tags(units, many).tolist() == matching_tags(units, [7]).tolist()

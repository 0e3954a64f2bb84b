"""Reads while the backend fails, and while what is read expires or is destroyed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from tests.access.cached_file_kit import WAIT_S
from tests.access.fetch_kit import ByCode, Shelf, numbered, offsets
from tests.flat.store_kit import unplaced
from tests.s3.s3_clients import CLIENTS
from tieredstore.driver.message_store import ReadRequest
from tieredstore.driver.runtime import Runtime
from tieredstore.flat.append_file import FlatAppendFile
from tieredstore.model.errors import BackendUnavailableError
from tieredstore.model.values import GetStatus
from tieredstore.testing.faults import Fault, Faults
from tieredstore.testing.samples import TOPIC

READERS = 64


def test_errors_of_a_future_are_in_it() -> None:
    faults = Faults()
    shelf = Shelf(faults=faults)
    shelf.put(numbered(0, 10))
    faults.always = Fault.BEFORE
    with pytest.raises(BackendUnavailableError):
        shelf.fetcher.get_message_future(ReadRequest(TOPIC, 0, 0)).result()


def questions(shelf: Shelf) -> list[Callable[[], Any]]:
    """Reads of every kind, cold and hot; each gives something to compare."""
    fetcher = shelf.fetcher
    return [
        lambda: offsets(shelf.get(3, 8)),
        lambda: offsets(shelf.get(3, 8, message_filter=ByCode(0))),
        lambda: [unplaced(one.record) for one in shelf.get(20, 40).messages],
        lambda: fetcher.store_time(TOPIC, 0, 50),
        lambda: fetcher.earliest_time(TOPIC, 0),
        lambda: fetcher.min_offset(TOPIC, 0),
        lambda: [one.queue_offset for one in fetcher.query_message(TOPIC, "key-7").messages],
        lambda: offsets(fetcher.get_message_future(ReadRequest(TOPIC, 0, 55)).result()),
    ]


def a_faulty_shelf(faults: Faults, cached: bool) -> Shelf:
    shelf = Shelf(faults=faults, read_ahead_enabled=cached, log_bytes=4000, queue_units=16)
    shelf.put(numbered(0, 60), tags=[n % 2 for n in range(60)])
    return shelf


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("fault", [Fault.BEFORE, Fault.AFTER])
def test_a_read_that_fails_is_an_error_or_right_and_the_next_one_works(
    cached: bool, fault: Fault
) -> None:
    sound = Faults()
    shelf = a_faulty_shelf(sound, cached)
    begin = sound.steps
    right = [ask() for ask in questions(shelf)]
    end = sound.steps
    assert end - begin >= 8
    for step in range(begin, end):
        shelf = a_faulty_shelf(Faults({step: fault}), cached)
        failures = 0
        for ask, wanted in zip(questions(shelf), right, strict=True):
            for _ in range(2):
                try:
                    answer = ask()
                    failures += answer != wanted
                    assert answer in (wanted, [])  # a key query leaves out what it cannot read
                except BackendUnavailableError:
                    failures += 1
        assert failures <= 1


def test_a_failed_read_is_never_taken_for_an_absent_message() -> None:
    faults = Faults()
    shelf = Shelf(faults=faults)
    shelf.put(numbered(0, 10), tags=[1] * 10)
    faults.always = Fault.BEFORE
    for message_filter in (None, ByCode(1), ByCode(2)):
        with pytest.raises(BackendUnavailableError):
            shelf.get(0, message_filter=message_filter)
    faults.always = None
    assert len(shelf.get(0).messages) == 10


def test_what_expires_during_a_read_is_answered_as_gone() -> None:
    shelf = Shelf(read_ahead_enabled=False, log_bytes=2000, queue_units=8)
    file = shelf.put(numbered(0, 40))

    def expire() -> None:
        shelf.provider.before_read = lambda: None
        for part in (file.queue, file.log):
            doomed = [each for each in part.segments if each.end <= first_kept(file, part)]
            part.drop(doomed)

    shelf.provider.before_read = expire
    result = shelf.get(0)
    assert result.status is GetStatus.OFFSET_TOO_SMALL
    assert result.next_offset == result.min_offset > 8


def first_kept(file: Any, part: FlatAppendFile) -> int:
    """The end of what goes: the first 16 units, and the log segments before what they name."""
    if part is file.queue:
        return 16 * 20
    return int(file.units(16, 1).log_offsets[0])


def test_readers_and_one_who_destroys_queues_never_see_anything_but_answers(backend: str) -> None:
    # Readers that never wait leave little of the interpreter to the threads of a client over HTTP.
    times = 5 if backend in CLIENTS else 100
    with Runtime.threads() as runtime:
        shelf = Shelf(runtime=runtime)
        wanted = numbered(0, 50)
        shelf.put(wanted)
        stop = threading.Event()

        def read() -> set[GetStatus]:
            seen = set()
            while not stop.is_set():
                result = shelf.get(0, 50)
                seen.add(result.status)
                for message in result.messages:
                    assert unplaced(message.record) == unplaced(wanted[message.queue_offset])
            return seen

        with ThreadPoolExecutor(4) as pool:
            readers: list[Future[set[GetStatus]]] = [pool.submit(read) for _ in range(4)]
            try:
                for _ in range(times):
                    shelf.store.destroy(shelf.queue().key)
                    shelf.put(wanted)
            finally:
                stop.set()
            seen = set().union(*(reader.result(WAIT_S) for reader in readers))
        assert seen <= {
            GetStatus.FOUND,
            GetStatus.NO_MATCHED_LOGIC_QUEUE,
            GetStatus.NO_MESSAGE_IN_QUEUE,
            GetStatus.OFFSET_OVERFLOW_ONE,
        }
        shelf.fetcher.close()

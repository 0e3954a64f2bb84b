"""Two writers over HTTP: the tests of `test_object_writers` that use only clients to look."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from tests.crash_stores import REMOTE, Clients, Stores
from tests.providers import test_object_writers as writers
from tests.providers.object_kit import Bucket
from tests.providers.two_writers import Two


class TwoInFront(Two):
    """Two writers on a store that the test is given."""

    def __init__(self, clients: Clients) -> None:
        self.bucket = Bucket(clients)
        self.begin()


CHECKS: list[Callable[[], None]] = [
    writers.test_a_late_entry_does_not_count,
    writers.test_nor_where_the_newer_one_has_only_claimed,
    writers.test_a_late_entry_does_not_bring_a_deleted_segment_back,
    writers.test_a_late_entry_does_not_count_in_a_segment_made_anew,
    writers.test_a_late_index_file_does_not_count,
    writers.test_what_landed_before_the_newer_one_read_counts_though_it_was_not_acknowledged,
    partial(
        writers.test_a_writer_that_died_while_it_took_over_has_fenced_the_older_one,
        ("list", "/broker-a/"),
    ),
    *(
        partial(writers.test_an_older_writer_learns_of_it_at_its_next_call, call)
        for call in ("write", "seal", "delete", "create", "round")
    ),
]


@pytest.mark.parametrize("stores", REMOTE, indirect=True)  # memory is covered there
@pytest.mark.parametrize("number", range(len(CHECKS)))
def test_of_two_writers_the_older_one_changes_nothing(
    stores: Stores, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(writers, "Two", lambda: TwoInFront(stores.new()))
    CHECKS[number]()

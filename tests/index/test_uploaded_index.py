"""Who only reads the uploaded files, while somebody else uploads and drops them."""

from __future__ import annotations

import threading
from pathlib import Path

from tests.index.store_kit import ALL, Shop, running
from tieredstore.testing.samples import TOPIC


def three_files(folder: Path) -> Shop:
    shop = Shop(folder)
    shop.upload_files(3)
    return shop


def test_a_file_that_expires_under_a_reader_leaves_the_answer_complete(tmp_path: Path) -> None:
    shop = three_files(tmp_path)
    reader = shop.reader()
    left = [2, 1]

    def expire() -> None:
        if left:
            left.pop()
            shop.index.expire(shop.segments()[0].end_timestamp or 0)
            shop.index.expire((shop.segments()[0].end_timestamp or 0) + 1)

    shop.provider.before_read = expire
    answer = reader.query(TOPIC, shop.topic_id, "k", **ALL)
    assert answer.complete
    assert [hit.log_offset for hit in answer.hits] == [2000]


def test_a_file_that_is_lost_makes_the_answer_incomplete_and_is_not_asked_for_ever(
    tmp_path: Path,
) -> None:
    shop = three_files(tmp_path)
    reader = shop.reader()
    row = shop.segments()[1]
    shop.provider.open(row.path, row.type, row.base_offset).delete()
    answer = reader.query(TOPIC, shop.topic_id, "k", **ALL)
    assert not answer.complete
    assert [hit.log_offset for hit in answer.hits] == [2000, 0]


def test_many_readers_see_what_is_uploaded_and_dropped_meanwhile(tmp_path: Path) -> None:
    shop = three_files(tmp_path)
    reader = shop.reader()
    failures: list[object] = []
    done = threading.Event()

    def ask() -> None:
        while not done.is_set():
            try:
                answer = reader.query(TOPIC, shop.topic_id, "k", **ALL)
            except BaseException as error:  # noqa: BLE001 - for the main thread
                failures.append(error)
                return
            times = [hit.store_timestamp for hit in answer.hits]
            if not answer.complete or times != sorted(times, reverse=True) or len(times) < 2:
                failures.append(answer)
                return

    with running(*[ask] * 3):
        for _ in range(20):
            shop.put(["k"])
            shop.index.seal()
            shop.index.expire((shop.segments()[0].end_timestamp or 0) + 1)
            shop.clock.advance(60_000)
        done.set()
    assert not failures

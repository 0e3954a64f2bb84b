"""Many threads at once: puts, questions, uploads, and questions asked in the pool itself."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path

from tests.index.store_kit import Shop, running
from tieredstore.driver.runtime import Runtime
from tieredstore.index.contract import IndexAnswer
from tieredstore.testing.samples import a_record


def test_questions_while_files_are_filled_and_uploaded_miss_nothing(tmp_path: Path) -> None:
    shop = Shop(tmp_path, items=200, expiry_enabled=False)
    shop.index.shutdown()
    with Runtime.threads(fetch_threads=4) as runtime:
        shop.open(runtime=runtime)
        shop.index.start()
        put = 0
        failures: list[BaseException] = []
        done = threading.Event()

        def ask() -> None:
            try:
                while not done.is_set():
                    before = put
                    answer = shop.ask("k")
                    assert answer.complete
                    assert len(answer.hits) >= before
            except BaseException as error:  # noqa: BLE001 - for the main thread
                failures.append(error)

        with running(*[ask] * 3):
            for _ in range(60):
                shop.put(["k"] * 25, unique=False)
                put += 25
            done.set()
        assert not failures
        shop.index.seal()
        assert len(shop.found("k")) == 60 * 25
        assert not shop.local_files()
        shop.index.shutdown()


def test_a_question_asked_in_the_pool_itself_never_waits_for_the_pool(tmp_path: Path) -> None:
    shop = Shop(tmp_path, items=20, expiry_enabled=False)
    shop.put(["k"] * 190, unique=False)
    shop.index.seal()
    shop.index.shutdown()
    with Runtime.threads(fetch_threads=2) as runtime:
        shop.open(runtime=runtime)

        def ask() -> IndexAnswer:
            return shop.ask("k")

        answers = [runtime.fetch.submit(ask) for _ in range(30)]
        assert all(len(answer.result(timeout=240).hits) == 190 for answer in answers)
        shop.index.shutdown()


def test_many_threads_fill_files_side_by_side(tmp_path: Path) -> None:
    shop = Shop(tmp_path, slots=500, items=2001, expiry_enabled=False)
    shop.commit(0)
    runs = {
        queue_id: [a_record(n, properties={"KEYS": "k"}) for n in range(1000)]
        for queue_id in range(6)
    }

    def put(queue_id: int) -> None:
        for first in range(0, 1000, 50):
            shop.give(first, runs[queue_id][first : first + 50], queue_id)

    with running(*(partial(put, queue_id) for queue_id in runs)):
        pass
    assert len(shop.found("k")) == 6000
    assert len(shop.local_files()) == 3
    assert len(shop.found("k", count_max=10)) == 10
    shop.index.seal()
    assert len(shop.found("k")) == 6000

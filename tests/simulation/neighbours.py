"""Another broker of the same cluster, whose tier is in the same bucket or directory.

Its name begins with that of the other broker, and its queues have the same names: anything that
lists, deletes or repairs too much harms one of the two.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from tests.simulation.acts import (
    BRIEF,
    LEVELS,
    PAGES_MAX,
    QUEUES,
    a_message,
    a_put,
    verify_tier,
)
from tests.simulation.model import Model, Question
from tieredstore.access.reader import TieredReader
from tieredstore.access.store import TieredMessageStore
from tieredstore.local.store import LocalMessageStore
from tieredstore.model.messages import GetResult, QueryResult
from tieredstore.model.values import QueueKey

if TYPE_CHECKING:
    from tests.simulation.world import Outsider


class Neighbour:
    """The other broker, with its own model; it may be closed between two of its acts."""

    def __init__(self, outsider: Outsider) -> None:
        world = self.world = outsider.world
        self.outsider, self.dice = outsider, outsider.dice
        self.local = replace(
            world.local_config(outsider.machine), store_path=outsider.config.store_path
        )
        self.model = Model(kept_ms=world.model.kept_ms)
        self.store: TieredMessageStore | None = None
        self.is_doomed = False  # it has begun to delete everything it has

    def act(self) -> None:
        sleep = self.outsider.runtime.clock.sleep
        sleep(self.dice.choice([0.1, 3, 100, 1_000]))
        for _ in range(self.dice.choice([1, 3, 6])):
            self._act_once()
            sleep(self.dice.choice([0.01, 1]))

    def _act_once(self) -> None:
        if BRIEF.topic in self.model.deletions and self.model.deletions[BRIEF.topic] % 2:
            self._delete()
        draw = self.dice.random()
        if self.is_doomed or draw < 0.05:
            self._destroy()
        elif draw < 0.4:
            self._put()
        elif draw < 0.6:
            self._read()
        elif draw < 0.7:
            self._ask_key(self._opened().query_message)
        elif draw < 0.8:
            self._opened().flush(seal=self.dice.random() < 0.5)
        elif draw < 0.85:
            self.model.begin_deletion(BRIEF.topic)
            self._delete()
        elif draw < 0.95:
            self._close(drain=self.dice.random() < 0.5)
        elif self.model.puts:
            self._take_care()

    def end(self) -> None:
        """After all faults: everything it was given must be there, here and elsewhere."""
        if self.is_doomed:
            self._destroy()
        store = self._opened()
        if self.model.deletions.get(BRIEF.topic, 0) % 2:
            self._delete()
        # A flush may time out when time jumps.
        is_flushed = any(store.flush(seal=True) for _ in range(3))
        assert is_flushed, f"not all can be uploaded: {store.health()}"
        for level in LEVELS:
            store.level = level
            self._walk(store.get_message)
        self._close(drain=True)
        if not self.model.queues:
            return
        with TieredReader(self.outsider.config) as reader:
            self._walk(reader.get_message)
            self._ask_key(reader.query_message, is_complete=True)
        verify_tier(self.outsider, self.outsider.config)

    def _opened(self) -> TieredMessageStore:
        if self.store is None:
            runtime = self.outsider.runtime
            store = TieredMessageStore(
                LocalMessageStore(self.local, runtime), self.outsider.config, runtime=runtime
            )
            store.load()
            self.store = store
            store.start()
        return self.store

    def _close(self, *, drain: bool) -> None:
        store, self.store = self.store, None
        if store is not None:
            store.shutdown(drain=drain)

    def _destroy(self) -> None:
        """Destroy the store; later messages begin at 0 again."""
        self.is_doomed = True
        self._opened().destroy()
        self.store, self.is_doomed = None, False
        self.model = Model(kept_ms=self.model.kept_ms)

    def _delete(self) -> None:
        self._opened().delete_topics([BRIEF.topic])
        self.model.end_deletion(BRIEF.topic)

    def _take_care(self) -> None:
        self._close(drain=False)
        care = self.dice.choice([self.world.repair, self.world.reindex])
        care(self.outsider.config)

    def _put(self) -> None:
        put = a_put(self.world, self.dice, self.dice.choice(QUEUES), self.model)
        result = self._opened().put_message(a_message(put, self.dice.choice([0, 100, 900])))
        if result.stored:
            self.model.acknowledge(put, result)

    def _read(self) -> None:
        queue, store = self.dice.choice(QUEUES), self._opened()
        store.level = self.dice.choice(LEVELS)
        offset = self.dice.randrange(self.model.end(queue) + 2)
        self._page(store.get_message, queue, offset)

    def _page(self, get: Callable[..., GetResult], queue: QueueKey, offset: int) -> GetResult:
        before, deletions = self.model.required(queue), self.model.deletions.get(queue.topic, 0)
        page = get(*queue, offset, count_max=self.dice.choice([1, 8]))
        self.saw_time()
        self.model.check_page(queue, page, offset, before, deletions, None)
        return page

    def _walk(self, get: Callable[..., GetResult]) -> None:
        for queue in QUEUES:
            offset = 0
            for _ in range(PAGES_MAX):
                if offset >= self.model.end(queue):
                    break
                page = self._page(get, queue, offset)
                assert page.next_offset > offset, f"{queue}: {page.status} from {offset} nowhere"
                offset = page.next_offset
            else:
                raise AssertionError(f"{queue}: no end")

    def _ask_key(self, query: Callable[..., QueryResult], *, is_complete: bool = False) -> None:
        if not self.model.puts:
            return
        put = self.dice.choice(list(self.model.puts.values()))
        topic, question = put.queue.topic, Question.about(put, self.dice)
        known = self.model.having(topic, question.key), self.model.deletions.get(topic, 0)
        answer = query(topic, question.key, **question.limits)
        self.saw_time()
        assert answer.complete or not is_complete, f"{question}: not complete though all is sound"
        self.model.check_answer(topic, question, answer, *known)

    def saw_time(self) -> None:
        self.model.newest_ms = max(self.model.newest_ms, self.world.scheduler.clock.now_ms())

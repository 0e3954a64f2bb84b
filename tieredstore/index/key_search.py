"""Asking several index files side by side, and one list of hits from all of them.

What lives here: `Asked`, one query; how many items of a file it looks at, and how answers are
joined. What a file is and how it finds items is in `store_file` and `uploaded_file`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappush, heapreplace
from typing import Final

from tieredstore.codec.java import index_key, wrap_int32
from tieredstore.driver.runtime import Runtime
from tieredstore.index.hits import IndexAnswer, IndexHit
from tieredstore.index.rows import FoundItem
from tieredstore.model.errors import StoreClosedError, TieredStoreError
from tieredstore.model.printable import log_of
from tieredstore.model.values import INT64_MAX

log = log_of(__name__)

FILES_AT_ONCE: Final = 8

Source = Callable[["Asked"], list[IndexHit]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One query: messages of a topic with a key, stored about within begin to end."""

    topic: str
    topic_id: int
    key: str
    count_max: int
    begin: int
    end: int

    @classmethod
    def of(
        cls, topic: str, topic_id: int, key: str, *, count_max: int, begin: int, end: int
    ) -> Asked:
        """With numbers that any file can be asked with."""
        return cls(
            topic=topic,
            topic_id=topic_id,
            key=key,
            count_max=min(count_max, INT64_MAX),
            begin=max(begin, -INT64_MAX - 1),
            end=min(end, INT64_MAX),
        )

    @property
    def can_have_answers(self) -> bool:
        return bool(
            self.count_max > 0 and self.begin <= self.end and self.key and self.topic.strip()
        )

    @property
    def text(self) -> str:
        return index_key(self.topic, self.key)

    def newest(
        self, items: Iterable[FoundItem], lateness: Callable[[], int | None] | None = None
    ) -> list[IndexHit]:
        """Of the items of one file, those put last first, the newest: each message once.

        All are looked at, unless it is known by how many seconds one may be older than one put
        before it.
        """
        wanted = wrap_int32(self.topic_id)
        late_ms: int | None = None
        kept: list[tuple[int, int, IndexHit]] = []  # a heap, the oldest first
        places: set[tuple[int, int]] = set()
        for number, item in enumerate(items):
            if item.topic_id != wanted:  # another topic's key with the same hash
                continue
            hit = IndexHit(self.topic_id, *item[1:])
            place = hit.queue_id, hit.log_offset
            if place in places:
                continue
            entry = hit.store_timestamp, -number, hit
            if len(kept) < self.count_max:
                heappush(kept, entry)
            elif kept[0] < entry:
                gone = heapreplace(kept, entry)[2]
                places.discard((gone.queue_id, gone.log_offset))
            else:
                if late_ms is None and lateness is not None:
                    late_ms = _milliseconds(lateness())
                if late_ms is not None and kept[0][0] >= hit.store_timestamp + late_ms:
                    break
                continue
            places.add(place)
        return joined([[hit for _, _, hit in sorted(kept, reverse=True)]], self.count_max)


def ask(
    asked: Asked, near: Sequence[Source], far: Sequence[Source], runtime: Runtime
) -> IndexAnswer:
    """What all sources have: near ones by the caller, far ones side by side.

    A source that fails hides no other one; the answer is not complete then. StoreClosedError
    comes through: a file that was uploaded meanwhile is to be asked where it is now.
    """
    answers: deque[list[IndexHit] | None] = deque()
    left = deque(far)
    helpers = min(FILES_AT_ONCE, len(far)) - 1
    others = [runtime.fetch.submit(_work, asked, left, answers) for _ in range(max(0, helpers))]
    # The caller's thread works too and waits for no place in the pool: it may itself be of it.
    _work(asked, deque(near), answers)
    _work(asked, left, answers)
    for other in others:
        if not other.cancel():
            other.result()
    hits = [answer for answer in answers if answer is not None]
    return IndexAnswer(
        hits=joined(hits, asked.count_max), complete=len(hits) == len(near) + len(far)
    )


def _milliseconds(seconds: int | None) -> int | None:
    return None if seconds is None else 1000 * seconds


def joined(answers: Sequence[Sequence[IndexHit]], count_max: int) -> list[IndexHit]:
    """The newest of all, newest first, each message once."""
    found: dict[tuple[int, int], IndexHit] = {}
    for hit in _all(answers):
        place = hit.queue_id, hit.log_offset
        held = found.get(place, hit)
        newer = hit if held.store_timestamp < hit.store_timestamp else held
        put_before = max(held.put_before, hit.put_before)
        found[place] = (
            newer if newer.put_before == put_before else newer._replace(put_before=put_before)
        )
    hits = sorted(found.values(), key=lambda hit: hit.store_timestamp, reverse=True)
    return hits[:count_max]


def _all(answers: Sequence[Sequence[IndexHit]]) -> Iterator[IndexHit]:
    for answer in answers:
        yield from answer


def _work(asked: Asked, left: deque[Source], answers: deque[list[IndexHit] | None]) -> None:
    while True:
        try:
            source = left.popleft()
        except IndexError:
            return
        try:
            answers.append(source(asked))
        except StoreClosedError:
            raise
        except (TieredStoreError, OSError) as error:
            log.warning("the key %r is not looked for everywhere: %s", asked.key, error)
            answers.append(None)

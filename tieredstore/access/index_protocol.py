"""What the access layer asks of a key index, and the index that is none.

What lives here: the protocol. Its values are in `index.hits`; the index itself is a container of
its own.
"""

from __future__ import annotations

from typing import Protocol

from tieredstore.index.hits import NOTHING, CommittedRun, IndexAnswer, IndexFigures, IndexHit

__all__ = [
    "NOTHING",
    "CommittedRun",
    "Index",
    "IndexAnswer",
    "IndexFigures",
    "IndexHit",
    "NoIndex",
]


class Index(Protocol):
    """Finds messages of the tier by their keys.

    * Lifecycle: `load`, `start`, `shutdown`, each idempotent; `destroy` deletes the data.
    * `put` comes after the commit of the messages, in queue order for each queue and never twice
      at a time for one queue. One that raises is tried again later, so a message may come twice.
      The run is the caller's: what is to be kept is copied.
    * Any thread may query at any time. `seal` uploads what it has only on the broker's own disk;
      it raises what the backend raises.
    """

    @property
    def problem(self) -> str | None:
        """What went wrong in the background last, as long as it does."""

    @property
    def figures(self) -> IndexFigures:
        """What there is, from memory."""

    def load(self) -> None: ...

    def start(self) -> None: ...

    def shutdown(self) -> None: ...

    def destroy(self) -> None: ...

    def seal(self) -> None: ...

    def put(self, topic: str, topic_id: int, queue_id: int, run: CommittedRun) -> None:
        """Take messages that were committed."""

    def indexed_offset(self, topic: str, topic_id: int, queue_id: int) -> int | None:
        """Below this queue offset `query` finds every message, and a crash loses none of them.

        What was committed at or above it is put again after a start, and read by who looks for a
        key meanwhile. None: nothing is, and what `query` says counts as it is. A topic
        that was deleted and made anew has another id, and 0 until something of it was put.
        """

    def query(
        self, topic: str, topic_id: int, key: str, *, count_max: int, begin: int, end: int
    ) -> IndexAnswer:
        """Messages of the topic that may have the key, stored about within [begin, end]."""


class NoIndex:
    """Keeps nothing and finds nothing, and says so: what it is asked for may be in the tier."""

    @property
    def problem(self) -> str | None:
        return None

    @property
    def figures(self) -> IndexFigures:
        return IndexFigures()

    def load(self) -> None:
        pass

    def start(self) -> None:
        pass

    def shutdown(self) -> None:
        pass

    def destroy(self) -> None:
        pass

    def seal(self) -> None:
        pass

    def put(self, topic: str, topic_id: int, queue_id: int, run: CommittedRun) -> None:
        pass

    def indexed_offset(self, topic: str, topic_id: int, queue_id: int) -> int | None:
        return None

    def query(
        self, topic: str, topic_id: int, key: str, *, count_max: int, begin: int, end: int
    ) -> IndexAnswer:
        return IndexAnswer(complete=False)

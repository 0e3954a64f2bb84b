"""The contract of a key index: the runs it takes, the hits it returns, and an empty index."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from tieredstore.codec.columns import FoundKeys
from tieredstore.model.messages import MessageRun
from tieredstore.model.values import INT64_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedRun:
    """Messages that are durable in the tier: row i of `run` lies at `log_offsets[i]` there.

    The records are as the tier has them. The run's own `log_offsets` may refer to another log: use
    these instead. `keys` are the keys of all these messages, if they were extracted when the
    messages were read.
    """

    run: MessageRun
    log_offsets: npt.NDArray[np.int64]
    keys: FoundKeys | None = None

    def __len__(self) -> int:
        return len(self.log_offsets)


class IndexHit(NamedTuple):
    """The place of a message that may have the key: an index stores hashes of keys."""

    topic_id: int
    queue_id: int
    log_offset: int  # in the tier's commit log of that queue
    message_bytes: int
    store_timestamp: int  # only as exact as the index keeps it: whole seconds
    put_before: int = INT64_MAX  # the index had the message by then, if that is known


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexFigures:
    """How many files are being filled, full but not uploaded, and uploaded; and in how many of the
    uploaded ones look-ups have met damage."""

    unsealed_count: int = 0
    sealed_count: int = 0
    uploaded_count: int = 0
    damaged_count: int = 0
    footer_cache_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexAnswer:
    """Hits, newest first; not `complete` if something that may have more hits could not be read.

    It does not cover messages that the index does not have yet: see `indexed_offset`.
    `newest_timestamp` is the newest store time in the index, 0 if unknown.
    """

    hits: Sequence[IndexHit] = ()
    complete: bool = True
    newest_timestamp: int = 0


NOTHING: Final = IndexAnswer()


class Index(Protocol):
    """Finds messages of the tier by their keys.

    * Lifecycle: `load`, `start`, `shutdown`, each idempotent; `destroy` deletes the data.
    * `put` is called after the commit of the messages, for each queue in order and by one thread at
      a time. A failed `put` is tried again later, so a message may come twice. The run belongs to
      the caller: the index copies what it keeps.
    * Any thread may query at any time. `seal` uploads what is only on the broker's own disk; it
      raises the backend's errors.
    """

    @property
    def problem(self) -> str | None:
        """The last failure of background work, until that work succeeds."""

    @property
    def figures(self) -> IndexFigures:
        """Counts of files; nothing is read for them."""

    def load(self) -> None: ...

    def start(self) -> None: ...

    def shutdown(self) -> None: ...

    def destroy(self) -> None: ...

    def seal(self) -> None: ...

    def put(self, topic: str, topic_id: int, queue_id: int, run: CommittedRun) -> None:
        """Take messages that were committed."""

    def indexed_offset(self, topic: str, topic_id: int, queue_id: int) -> int | None:
        """Below this queue offset `query` finds every message, and a crash loses none of them.

        Messages committed at or above it are put again after a start; until then a look-up reads
        the messages themselves. None means unknown: answers are used as they are. A topic that was
        deleted and made again has another id, and 0 until a message of it was put.
        """

    def query(
        self, topic: str, topic_id: int, key: str, *, count_max: int, begin: int, end: int
    ) -> IndexAnswer:
        """Messages of the topic that may have the key, stored about within [begin, end]."""


class NoIndex:
    """Keeps nothing and finds nothing. No answer is complete: the tier may hold the message."""

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

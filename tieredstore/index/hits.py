"""What goes into a key index and what it answers, whoever asks.

What lives here: values only. Columns and items of one file are in `rows`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from tieredstore.model.messages import MessageRun
from tieredstore.model.values import INT64_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedRun:
    """Messages that are durable in the tier: row i of `run` lies at `log_offsets[i]` there.

    The records are as the tier has them. Whose log the run's own `log_offsets` mean is left open:
    go by `log_offsets` here.
    """

    run: MessageRun
    log_offsets: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.log_offsets)


class IndexHit(NamedTuple):
    """Where a message lies whose key may be the one asked for: keys are stored as hashes."""

    topic_id: int
    queue_id: int
    log_offset: int  # in the tier's commit log of that queue
    message_bytes: int
    store_timestamp: int  # as exact as the index keeps it: whole seconds
    put_before: int = INT64_MAX  # the index had it by then, where that is known


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexFigures:
    """How many files there are: being filled, full but not uploaded, uploaded."""

    unsealed_count: int = 0
    sealed_count: int = 0
    uploaded_count: int = 0
    footer_cache_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexAnswer:
    """Hits, newest first; not `complete` where something that may hold more could not be read.

    Of messages that the index has not taken it says nothing: see `indexed_offset`.
    """

    hits: Sequence[IndexHit] = ()
    complete: bool = True


NOTHING: Final = IndexAnswer()

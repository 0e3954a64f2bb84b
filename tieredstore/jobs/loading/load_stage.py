"""What one task of a bulk load does: its rows become records, staged under the attempt's own name.

What lives here: `Stager`, and what it tells the driver. Nothing of it is part of the tier, and
neither queue offsets nor log offsets are known yet: `load_write` puts them in.

A staged object has one portion for each of its queues:

    | part    | bytes   |                                                            |
    | ------- | ------- | ---------------------------------------------------------- |
    | units   | 20 each | as in a consume queue; log offsets count from the records  |
    | times   | 8 each  | store times, big-endian                                    |
    | records |         | one behind the other; both offsets are 0                   |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from tieredstore.codec.queue_unit import UNIT_BYTES, encode_units
from tieredstore.driver.scratch import Scratch
from tieredstore.driver.segment import Buffer
from tieredstore.jobs.loading.load_columns import LoadColumns
from tieredstore.jobs.loading.load_records import EncodedRun, encode_batch
from tieredstore.model.values import QueueKey

FOLDER: Final = "load"
BLOCK_BYTES: Final = 16 << 20  # of records of all queues together, in memory of one task
TIME_BYTES: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedPortion:
    """Messages of one queue in a staged object, from byte `position` of it on."""

    name: str
    key: QueueKey
    position: int
    count: int
    log_bytes: int

    @property
    def times_position(self) -> int:
        return self.position + self.count * UNIT_BYTES

    @property
    def records_position(self) -> int:
        return self.times_position + self.count * TIME_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedPart:
    """All that one attempt at a partition has staged, in the order of its rows."""

    partition: int
    portions: tuple[StagedPortion, ...]

    @property
    def message_count(self) -> int:
        return sum(each.count for each in self.portions)


def run_folder(run_id: str) -> str:
    """Where all attempts of one load stage what they make."""
    return f"{FOLDER}/{run_id}"


class Stager:
    """Takes the batches of one attempt, one by one. Holds about two blocks."""

    def __init__(
        self,
        scratch: Scratch,
        columns: LoadColumns,
        *,
        run_id: str,
        partition: int,
        attempt: str,
        block_bytes: int = BLOCK_BYTES,
    ) -> None:
        self._scratch = scratch
        self._columns = columns
        self._stem = f"{run_folder(run_id)}/part-{partition}-{attempt}"
        self._partition = partition
        self._block_bytes = block_bytes
        self._waiting: dict[QueueKey, list[EncodedRun]] = {}
        self._waiting_bytes = self._put_count = 0
        self._portions: list[StagedPortion] = []

    def add(self, batch: pa.RecordBatch) -> None:
        for run in encode_batch(batch, self._columns):
            self._waiting.setdefault(run.key, []).append(run)
            self._waiting_bytes += len(run.records)
            if self._waiting_bytes >= self._block_bytes:
                self._put()

    def finish(self) -> StagedPart:
        if self._waiting:
            self._put()
        return StagedPart(partition=self._partition, portions=tuple(self._portions))

    def _put(self) -> None:
        name = f"{self._stem}.{self._put_count}"
        blocks: list[Buffer] = []
        position = 0
        for key, runs in self._waiting.items():
            portion = StagedPortion(
                name=name,
                key=key,
                position=position,
                count=sum(map(len, runs)),
                log_bytes=sum(len(run.records) for run in runs),
            )
            blocks += _portion_blocks(runs)
            position = portion.records_position + portion.log_bytes
            self._portions.append(portion)
        self._scratch.put(name, blocks)
        self._put_count += 1
        self._waiting, self._waiting_bytes = {}, 0


def _portion_blocks(runs: Sequence[EncodedRun]) -> list[Buffer]:
    sizes = np.concatenate([run.message_bytes for run in runs])
    units = encode_units(
        log_offsets=np.cumsum(sizes) - sizes,
        message_bytes=sizes,
        tags_codes=np.concatenate([run.tags_codes for run in runs]),
    )
    times = np.concatenate([run.store_times for run in runs]).astype(">i8").tobytes()
    return [units, times, *(run.records for run in runs)]

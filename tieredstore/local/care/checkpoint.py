"""The checkpoint file: up to which store times the parts of a store are durable.

What lives here: its bytes, its rules and its file. Who has become durable is for the store to say.

    | offset | width | field                                                            |
    | ------ | ----- | ---------------------------------------------------------------- |
    |      0 | i64   | store time up to which the commit log is durable                 |
    |      8 | i64   | the same of the consume queues                                   |
    |     16 | i64   | the same of the key index                                        |
    |     24 | i64   | log offset up to which the master of a replica has flushed       |
    |     32 | i64   | log offset of the last message that recovery found good          |
    |     40 | i64   | from RocketMQ 5.5 on: log offset up to which queues are durable  |

The file has 4096 bytes, of which the rest is left as it was. The last field is written as 0, which
is nothing known: later versions then go by the times, as 5.3.3 does.
"""

from __future__ import annotations

import errno
import os
import threading
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from struct import Struct
from typing import Final

from tieredstore.codec.bounds import pack_fields
from tieredstore.driver.durable import NO_LINK, write_all, write_atomically

CHECKPOINT_BYTES: Final = 4096
MARGIN_MS: Final = 3_000

_FIELDS: Final = Struct(">qqqqq")
_NO_QUEUE_OFFSET: Final = bytes(8)
_WRITTEN_BYTES: Final = _FIELDS.size + len(_NO_QUEUE_OFFSET)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointValues:
    """What a checkpoint says; 0 means that nothing is known to be durable."""

    log_timestamp: int = 0
    queue_timestamp: int = 0
    index_timestamp: int = 0
    master_flushed_offset: int = 0
    confirmed_offset: int = 0

    @property
    def min_timestamp(self) -> int:
        """Messages stored before this are in the log and in their queues, whatever happened.

        The margin is Java's: its times of one moment may come out of order.
        """
        return max(0, min(self.log_timestamp, self.queue_timestamp) - MARGIN_MS)


_NAMES: Final = tuple(CheckpointValues.__dataclass_fields__)


def encode_checkpoint(values: CheckpointValues) -> bytes:
    """The first 40 bytes of the file."""
    return pack_fields(_FIELDS, _NAMES, *astuple(values))


def decode_checkpoint(data: bytes) -> CheckpointValues:
    """What the bytes say, whatever their number.

    A checkpoint only ever saves work in a recovery. So what is missing or cannot be true is 0,
    nothing known: the recovery reads more and finds the same. Java reads a short file like this.
    """
    whole = data[: _FIELDS.size].ljust(_FIELDS.size, b"\x00")
    known = (max(0, value) for value in _FIELDS.unpack(whole))
    return CheckpointValues(**dict(zip(_NAMES, known, strict=True)))


class StoreCheckpoint:
    """The checkpoint of one store, in memory and in its file.

    Values change in memory when the store says so, and only after the part they speak of is
    durable; `flush` brings them into the file. A crash in between leaves older values, which are
    as true. Times never move back but by `rewind`. Any thread may call anything.
    """

    def __init__(self, path: Path, values: CheckpointValues, *, written: bytes | None) -> None:
        self._path = path
        self._values = values
        self._written = written
        self._guard = threading.Lock()
        self._file_guard = threading.Lock()

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> StoreCheckpoint:
        """Read the file; one that is missing, short or damaged knows less. Writes nothing."""
        path = Path(path)
        try:
            with path.open("rb") as file:
                data = file.read(CHECKPOINT_BYTES)
        except FileNotFoundError:
            return cls(path, CheckpointValues(), written=None)
        whole = len(data) == CHECKPOINT_BYTES
        return cls(path, decode_checkpoint(data), written=data[:_WRITTEN_BYTES] if whole else None)

    @property
    def values(self) -> CheckpointValues:
        return self._values

    @property
    def min_timestamp(self) -> int:
        return self._values.min_timestamp

    def advance(
        self,
        *,
        log_timestamp: int = 0,
        queue_timestamp: int = 0,
        index_timestamp: int = 0,
    ) -> None:
        """Messages stored up to these times have become durable. Older times change nothing."""
        with self._guard:
            old = self._values
            self._values = replace(
                old,
                log_timestamp=max(old.log_timestamp, log_timestamp),
                queue_timestamp=max(old.queue_timestamp, queue_timestamp),
                index_timestamp=max(old.index_timestamp, index_timestamp),
            )

    def rewind(self, timestamp: int) -> None:
        """Nothing stored after `timestamp` is left: recovery cut the log, or a part was rebuilt."""
        with self._guard:
            old = self._values
            self._values = replace(
                old,
                log_timestamp=min(old.log_timestamp, max(0, timestamp)),
                queue_timestamp=min(old.queue_timestamp, max(0, timestamp)),
                index_timestamp=min(old.index_timestamp, max(0, timestamp)),
            )

    def confirm(
        self, *, confirmed_offset: int | None = None, master_flushed_offset: int | None = None
    ) -> None:
        """Set the two log offsets, forward or back."""
        with self._guard:
            old = self._values
            self._values = replace(
                old,
                confirmed_offset=(
                    old.confirmed_offset if confirmed_offset is None else confirmed_offset
                ),
                master_flushed_offset=(
                    old.master_flushed_offset
                    if master_flushed_offset is None
                    else master_flushed_offset
                ),
            )

    def flush(self) -> bool:
        """Make the values durable; False where the file had them already."""
        with self._file_guard:
            data = encode_checkpoint(self._values) + _NO_QUEUE_OFFSET
            if data == self._written:
                return False
            if self._written is None:
                write_atomically(self._path, [data, bytes(CHECKPOINT_BYTES - len(data))])
            else:
                self._overwrite(data)
            self._written = data
            return True

    def _overwrite(self, data: bytes) -> None:
        # In place, as it is done every second: 40 bytes lie in one sector, which is written whole.
        try:
            descriptor = os.open(self._path, os.O_WRONLY | NO_LINK)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ELOOP):
                raise
            # Gone, or a link: a file takes its name, and what a link leads to stays as it is.
            write_atomically(self._path, [data, bytes(CHECKPOINT_BYTES - len(data))])
            return
        try:
            write_all(descriptor, data, 0)
            os.fdatasync(descriptor)
        finally:
            os.close(descriptor)

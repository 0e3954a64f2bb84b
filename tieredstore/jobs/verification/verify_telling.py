"""What is said of a slice of a queue: the segment, the position and the message of each finding.

What lives here: `SliceFindings`. What is found is for `verify_slice`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from tieredstore.codec.queue_unit import UNIT_BYTES
from tieredstore.jobs.verification.verify_bytes import SegmentBytes
from tieredstore.jobs.verification.verify_findings import Findings, VerifyKind
from tieredstore.jobs.verification.verify_records import Named
from tieredstore.model.errors import TieredStoreError
from tieredstore.model.values import QueueKey


class SliceFindings:
    """Findings of one queue, whose log and units they are about."""

    def __init__(
        self, findings: Findings, key: QueueKey, log: SegmentBytes, units: SegmentBytes
    ) -> None:
        self._findings = findings
        self._key = key
        self._log = log
        self._units = units

    def units(self, kind: VerifyKind, named: Named, wrong: NDArray[np.bool_], why: str) -> None:
        """Units that name what cannot be."""
        for row in self._findings.rows(kind, wrong):
            offset = int(named.queue_offsets[row])
            path, position = self._units.place(offset * UNIT_BYTES)
            named_bytes = f"{named.sizes[row]} bytes at {named.places[row]}"
            self._findings.describe(
                kind,
                path,
                f"the unit of message {offset} names {named_bytes}: {why}",
                key=self._key,
                position=position,
                queue_offset=offset,
            )

    def records(
        self, kind: VerifyKind, named: Named, wrong: NDArray[np.bool_], say: Callable[[int], str]
    ) -> None:
        """Records that are not what their units say."""
        for row in self._findings.rows(kind, wrong):
            path, position = self._log.place(int(named.places[row]))
            offset = int(named.queue_offsets[row])
            self._findings.describe(
                kind,
                path,
                f"message {offset}: {say(row)}",
                key=self._key,
                position=position,
                queue_offset=offset,
            )

    def lost_units(self, start: int, end: int) -> None:
        text = f"the units of messages {start} to {end - 1} are not there"
        self._many(VerifyKind.LOST_BYTES, text, self._units, start * UNIT_BYTES, start, end - start)

    def lost_records(self, named: Named) -> None:
        first, last, count = int(named.queue_offsets[0]), int(named.queue_offsets[-1]), len(named)
        text = f"the records of {count} messages from {first} to {last} are not there"
        self._many(VerifyKind.LOST_BYTES, text, self._log, int(named.places[0]), first, count)

    def unreadable_units(self, error: TieredStoreError, first: int, count: int) -> None:
        text = f"{count} units from {first} on cannot be read: {error}"
        self._many(VerifyKind.UNREADABLE, text, self._units, first * UNIT_BYTES, first, count)

    def unreadable_records(self, error: TieredStoreError, named: Named) -> None:
        first, count = int(named.queue_offsets[0]), len(named)
        text = f"{count} messages from {first} on cannot be read: {error}"
        self._many(VerifyKind.UNREADABLE, text, self._log, int(named.places[0]), first, count)

    def not_looked_at(self, named: Named) -> None:
        first, count = int(named.queue_offsets[0]), len(named)
        text = f"units from {first} on lead all over the log: {count} were not looked at"
        self._many(VerifyKind.UNREADABLE, text, self._units, first * UNIT_BYTES, first, count)

    def _many(
        self, kind: VerifyKind, text: str, file: SegmentBytes, at: int, offset: int, count: int
    ) -> None:
        path, position = file.place(at)
        self._findings.add(
            kind,
            path,
            text,
            key=self._key,
            position=position,
            queue_offset=offset,
            count=count,
        )

"""Items of a hash index, chained by slot: a batch is linked to a file as single puts would link it.

Items are numbered from 1 on in the order of their puts. A slot begins with the number of its newest
item, and an item has the number of the next older item of its slot; 0 means none. An impossible
number in a slot also counts as none.
"""

from __future__ import annotations

from dataclasses import dataclass
from mmap import mmap
from struct import Struct
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

VECTOR_ITEMS_MIN: Final = 16
"""From here on numpy links a batch faster than a loop does (measured)."""

SORT_BITS: Final = 16
_SLOT: Final = Struct(">i")  # the codec's own checks would triple the cost of a lookup or a put


Numbers = NDArray[np.int64] | list[int]


class Links(NamedTuple):
    """What a batch changes in its chains, as arrays; as lists for a few items.

    A writer stores the items first and `newest` into `slots` last, so that a reader in another
    thread never sees a slot whose item is not there yet.
    """

    previous: Numbers  # of each item of the batch
    slots: Numbers  # that the batch changes, each once
    newest: Numbers  # item of each of these slots
    fresh: int  # how many of these slots were empty


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainLayout:
    """Where the slots of a file are: after its header, each `slot_bytes` wide.

    `names_next` is Java's rule for the local store: a slot may also name the item that is about to
    be put into it.
    """

    header_bytes: int
    slot_bytes: int
    names_next: bool = False

    def heads(self, data: mmap, slot_count: int) -> NDArray[np.int32]:
        """The numbers in all slots, in place."""
        words = self.slot_bytes // 4
        numbers: NDArray[Any] = np.frombuffer(data, ">i4", words * slot_count, self.header_bytes)
        return numbers[::words]

    def head(self, data: mmap, slot: int) -> int:
        """The number in one slot, unchecked."""
        item: int = _SLOT.unpack_from(data, self.header_bytes + self.slot_bytes * slot)[0]
        return item

    def link(
        self, data: mmap, slots: NDArray[np.int32], *, first_item: int, slot_count: int
    ) -> Links:
        """Chain the items of a batch to each other and to the file; `slots` are their slots, in
        order."""
        if len(slots) < VECTOR_ITEMS_MIN:
            return self._link_few(data, slots, first_item)
        if len(slots) ** 2 < slot_count:  # so few that two seldom share a slot
            in_order = np.sort(slots)
            if not (in_order[1:] == in_order[:-1]).any():
                return self._link_distinct(data, slots, first_item, slot_count)
        return self._link_many(data, slots, first_item, slot_count)

    def _link_distinct(
        self, data: mmap, slots: NDArray[np.int32], first_item: int, slot_count: int
    ) -> Links:
        """Link items that all have different slots, as is usual for some hundred items among
        millions of slots. Takes half of the calls, because no order is needed."""
        numbers = np.arange(first_item, first_item + len(slots))
        touched = slots.astype(np.int64)
        previous = self.heads(data, slot_count)[touched].astype(np.int64)
        wrong = (previous < 0) | (previous >= (numbers + 1 if self.names_next else first_item))
        previous[wrong] = 0
        fresh = len(slots) - int(np.count_nonzero(previous))
        return Links(previous, touched, numbers, fresh)

    def _link_few(self, data: mmap, slots: NDArray[np.int32], first_item: int) -> Links:
        heads: dict[int, int] = {}
        previous = []
        fresh = 0
        for number, slot in enumerate(slots.tolist(), first_item):
            head = heads.get(slot)
            if head is None:
                head = self.head(data, slot)
                if not 0 < head < (number + 1 if self.names_next else first_item):
                    head = 0
                    fresh += 1
            previous.append(head)
            heads[slot] = number
        return Links(previous, list(heads), list(heads.values()), fresh)

    def _link_many(
        self, data: mmap, slots: NDArray[np.int32], first_item: int, slot_count: int
    ) -> Links:
        count = len(slots)
        order = _order_by_slot(slots, slot_count)  # stable: in put order within a slot
        in_order = slots[order]
        numbers = order + first_item
        starts = np.empty(count, np.bool_)
        starts[0] = True
        np.not_equal(in_order[1:], in_order[:-1], out=starts[1:])
        touched = in_order[starts].astype(np.int64)
        heads = self.heads(data, slot_count)[touched].astype(np.int64)
        heads[(heads < 0) | (heads >= (numbers[starts] + 1 if self.names_next else first_item))] = 0
        chained = np.empty(count, np.int64)
        chained[1:] = numbers[:-1]
        chained[starts] = heads
        previous = np.empty(count, np.int64)
        previous[order] = chained
        ends = np.empty(count, np.bool_)
        ends[-1] = True
        ends[:-1] = starts[1:]
        return Links(previous, touched, numbers[ends], int(np.count_nonzero(heads == 0)))

    def store_heads(self, data: mmap, links: Links, *, slot_count: int) -> None:
        """Make the items of a batch visible to readers."""
        if not isinstance(links.slots, list):
            self.heads(data, slot_count)[links.slots] = links.newest
            return
        for slot, item in zip(links.slots, links.newest, strict=True):
            at = self.header_bytes + self.slot_bytes * slot
            # One copy: `pack_into` writes byte by byte, so a kill could leave half a number.
            data[at : at + _SLOT.size] = _SLOT.pack(item)


def _order_by_slot(slots: NDArray[np.int32], slot_count: int) -> NDArray[np.int64]:
    """A stable order. Uses 16-bit numbers, which numpy sorts by radix, several times as fast."""
    if slot_count <= 1 << SORT_BITS:
        return np.argsort(slots.astype(np.uint16), kind="stable")
    low = np.argsort(slots.astype(np.uint16), kind="stable")
    high = (slots >> SORT_BITS).astype(np.uint16)[low]
    return low[np.argsort(high, kind="stable")]

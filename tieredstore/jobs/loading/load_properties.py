"""The property texts of many messages, from a column of maps and from columns of their own.

What lives here: `PropertyTexts`. Each step is taken for all messages together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tieredstore.codec.checksum import PROPERTY_CRC_NAME
from tieredstore.codec.message import PROPERTY_BYTES_MAX
from tieredstore.codec.properties import KEYS, NAME_END, TAGS, UNIQUE_KEY, VALUE_END
from tieredstore.index.key_hashes import key_hashes
from tieredstore.jobs.loading.load_columns import LoadColumns, LoadRefusedError

_COLUMNS: Final[Mapping[str, str]] = {TAGS: "tags", KEYS: "keys", UNIQUE_KEY: "unique_key"}
_NOTHING: Final = ""


class PropertyTexts:
    """The texts of one batch, and the codes of the tags in them.

    A column of its own counts more than the entry of the map, and takes its place; an entry that
    the map has not comes behind the others. The checksum of a whole record is dropped: its offsets
    change.
    """

    def __init__(self, columns: LoadColumns, batch: pa.RecordBatch) -> None:
        self._count = len(batch)
        own = {
            TAGS: columns.text(batch, "tags"),
            KEYS: columns.keys(batch),
            UNIQUE_KEY: columns.text(batch, "unique_key"),
        }
        self._own = {name: values for name, values in own.items() if values is not None}
        for name, values in self._own.items():
            _refuse(values, VALUE_END, f"column {_COLUMNS[name]}")
        self._tags = self._own.get(TAGS)
        given = columns.properties(batch)
        pieces = [] if given is None else [self._of_maps(given)]
        pieces += [
            pc.binary_join_element_wise(name, NAME_END, values, VALUE_END, _NOTHING).fill_null("")
            for name, values in self._own.items()
        ]
        self.texts = self._joined(pieces)

    def tags_codes(self) -> NDArray[np.int64]:
        """What a consume queue stores for the tags."""
        codes = np.zeros(self._count, np.int64)
        if self._tags is None:
            return codes
        found = self._tags.dictionary_encode()
        hashes = key_hashes(found.dictionary.to_pylist())
        of_text = hashes.astype(np.uint32).view(np.int32).astype(np.int64)
        rows = np.flatnonzero(found.indices.is_valid().to_numpy(zero_copy_only=False))
        codes[rows] = of_text[found.indices.drop_null().to_numpy()]
        return codes

    def _of_maps(self, maps: pa.MapArray) -> pa.Array:
        offsets = maps.offsets.to_numpy().astype(np.int64)
        first, end = int(offsets[0]), int(offsets[-1])
        names, values = maps.keys[first:end], maps.items[first:end]
        rows = np.repeat(np.arange(self._count), np.diff(offsets))
        kept = values.is_valid().to_numpy(zero_copy_only=False)
        kept = kept & maps.is_valid().to_numpy(zero_copy_only=False)[rows]
        kept &= pc.not_equal(names, PROPERTY_CRC_NAME).to_numpy(zero_copy_only=False)
        if not kept.all():
            names, values, rows = names.filter(kept), values.filter(kept), rows[kept]
        _refuse(names, NAME_END, "column properties, a name")
        _refuse(names, VALUE_END, "column properties, a name")
        _refuse(values, VALUE_END, "column properties, a value")
        if pc.any(pc.equal(names, "")).as_py():
            raise LoadRefusedError("column properties: a name is empty")
        for name in _COLUMNS:
            values = self._merged(name, names, values, rows)
        texts = pc.binary_join_element_wise(names, NAME_END, values, VALUE_END, _NOTHING)
        starts = np.searchsorted(rows, np.arange(self._count + 1)).astype(np.int32)
        return pc.binary_join(pa.ListArray.from_arrays(starts, texts), _NOTHING)

    def _merged(
        self, name: str, names: pa.Array, values: pa.Array, rows: NDArray[np.int64]
    ) -> pa.Array:
        """The values with those of the column in their place; what stays of the column is what
        the maps have not."""
        here = np.flatnonzero(pc.equal(names, name).to_numpy(zero_copy_only=False))
        own = self._own.get(name)
        if not len(here):
            return values
        owners = rows[here]
        if own is not None:
            given = own.take(pa.array(owners))
            replaced = pc.coalesce(given, values.take(pa.array(here)))
            mask = np.zeros(len(values), np.bool_)
            mask[here] = True
            values = pc.replace_with_mask(values, mask, replaced)
            has = np.zeros(self._count, np.bool_)
            has[owners] = True
            self._own[name] = pc.if_else(pa.array(has), pa.scalar(None, pa.string()), own)
        if name == TAGS:
            places = np.full(self._count, -1, np.int64)
            places[owners] = here
            from_map = values.take(pa.array(places, mask=places < 0))
            self._tags = from_map if own is None else pc.coalesce(from_map, own)
        return values

    def _joined(self, pieces: Sequence[pa.Array]) -> pa.Array:
        if not pieces:
            return pa.repeat(pa.scalar(b""), self._count)
        texts = pieces[0] if len(pieces) == 1 else pc.binary_join_element_wise(*pieces, _NOTHING)
        longest = pc.max(pc.binary_length(texts)).as_py() or 0
        if longest > PROPERTY_BYTES_MAX:
            raise LoadRefusedError(
                f"the properties of a message have {longest} bytes, more than {PROPERTY_BYTES_MAX}"
            )
        return texts.cast(pa.binary())


def _refuse(texts: pa.Array, mark: str, what: str) -> None:
    found = pc.match_substring(texts, mark)
    if pc.any(found).as_py():
        text = texts.filter(found)[0].as_py()
        raise LoadRefusedError(f"{what}: {text!r:.80} holds 0x{ord(mark):02X}, which parts them")

"""New units of a queue: those of a loop over the messages, also in what they refuse."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tieredstore.codec.queue_unit import encode_unit, encode_units
from tieredstore.local.consume_queue import encode_new_units

messages = st.lists(
    st.tuples(st.integers(0, 2), st.integers(-1, 3), st.integers(-(2**63), 2**63)), max_size=8
)


@given(rows=messages, begin=st.integers(-1, 3), last_log_end=st.integers(0, 30))
def test_new_units_are_those_of_a_loop_over_the_messages(
    rows: list[tuple[int, int, int]], begin: int, last_log_end: int
) -> None:
    log_offsets: list[int] = []
    for apart, size, _ in rows:
        log_offsets.append(begin + apart)
        begin += apart + size
    sizes, tags_codes = [size for _, size, _ in rows], [tags for _, _, tags in rows]
    units, end = [], 0
    is_sound = True
    for log_offset, size, tags_code in zip(log_offsets, sizes, tags_codes, strict=True):
        is_sound = is_sound and log_offset >= end and size > 0
        end = log_offset + size
        if end > last_log_end:  # only a known message may have a tags code that fits nothing
            is_sound = is_sound and tags_code < 2**63
            units.append((log_offset, size, tags_code))
    if not is_sound:
        with pytest.raises(ValueError, match="log_offset|message_bytes|tags_code"):
            encode_new_units(log_offsets, sizes, tags_codes, last_log_end)
        return
    new = encode_new_units(log_offsets, sizes, tags_codes, last_log_end)
    assert (new.skipped, new.last_log_end) == (len(rows) - len(units), end)
    assert new.data == b"".join(
        encode_unit(log_offset=at, message_bytes=size, tags_code=code) for at, size, code in units
    )


def test_a_message_that_ends_where_the_queue_ends_is_known() -> None:
    for count in (3, 100):
        log_offsets = [100 * number for number in range(count)]
        sizes, tags = [100] * count, [7] * count
        new = encode_new_units(log_offsets, sizes, tags, 200)
        assert new.skipped == 2
        assert new.last_log_end == 100 * count
        assert new.data == encode_units(
            log_offsets=log_offsets[2:], message_bytes=sizes[2:], tags_codes=tags[2:]
        )
        assert encode_new_units(log_offsets, sizes, tags, 100 * count).data == b""

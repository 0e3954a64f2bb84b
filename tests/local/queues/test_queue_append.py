"""New units: the loop for few messages and numpy for many agree, also in what they refuse."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tieredstore.codec.queue_unit import encode_units
from tieredstore.local import consume_queue
from tieredstore.local.consume_queue import NewUnits, encode_new_units

messages = st.lists(
    st.tuples(st.integers(0, 2), st.integers(-1, 3), st.integers(-(2**63), 2**63)), max_size=8
)


@given(rows=messages, begin=st.integers(-1, 3), last_log_end=st.integers(0, 30))
def test_few_and_many_are_encoded_alike(
    rows: list[tuple[int, int, int]], begin: int, last_log_end: int
) -> None:
    log_offsets: list[int] = []
    for apart, size, _ in rows:
        log_offsets.append(begin + apart)
        begin += apart + size
    columns = (log_offsets, [size for _, size, _ in rows], [tags for _, _, tags in rows])
    outcomes: list[NewUnits | str] = []
    for encode in (consume_queue._encode_few, consume_queue._encode_many):
        if not rows:
            continue
        try:
            outcomes.append(encode(*columns, last_log_end))
        except ValueError:
            outcomes.append("refused")
    # Only a message that is known already may have a tags code that fits nothing.
    known = isinstance(outcomes[0], NewUnits) if outcomes else False
    if not (known and outcomes[1] == "refused"):
        assert outcomes[:1] == outcomes[1:]
    if rows:
        quick = consume_queue._encode_new(*columns, last_log_end)
        assert quick in (None, outcomes[0])


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

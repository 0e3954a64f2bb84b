"""Units of consume queues: the broker's files, round trips, damage."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.codec.golden_files import GOLDEN, expected, files_under, sha256
from tests.codec.values import INT32, INT64
from tieredstore.codec import queue_unit
from tieredstore.codec.queue_unit import QueueUnit, decode_unit, decode_units, view_units
from tieredstore.model.errors import SegmentCorruptError

UNITS = st.builds(QueueUnit, INT64, INT32, INT64)
LOCAL: list[dict[str, Any]] = expected("local-clean.expect-messages.json")
STATE: dict[str, Any] = expected("local-clean.expect-state.json")


def encode_one_by_one(units: list[QueueUnit]) -> bytes:
    return b"".join(queue_unit.encode_unit(**unit._asdict()) for unit in units)


def columns(units: list[QueueUnit]) -> dict[str, list[int]]:
    return {
        "log_offsets": [unit.log_offset for unit in units],
        "message_bytes": [unit.message_bytes for unit in units],
        "tags_codes": [unit.tags_code for unit in units],
    }


@pytest.mark.parametrize("row", STATE["queues"], ids=lambda row: f"{row['topic']}/{row['queueId']}")
def test_every_golden_queue_names_its_messages(row: dict[str, Any]) -> None:
    folder = f"local-clean/consumequeue/{row['topic']}/{row['queueId']}"
    data = b"".join(path.read_bytes() for path in files_under(folder))
    used = data[20 * row["minOffset"] : 20 * row["maxOffset"]]
    assert sha256(used) == row["unitsSha256"]
    wanted = [
        (message["physicalOffset"], message["size"], message["tagsCode"])
        for message in LOCAL
        if (message["topic"], message["queueId"]) == (row["topic"], row["queueId"])
        and message["inConsumeQueue"]
    ]
    assert [decode_unit(used, at) for at in range(0, len(used), 20)] == wanted
    units = decode_units(used)
    assert (
        list(zip(*(getattr(units, name).tolist() for name in columns([])), strict=True)) == wanted
    )
    again = queue_unit.encode_units(**columns([QueueUnit(*unit) for unit in wanted]))
    assert again == used


def test_every_tiered_queue_file_is_written_again_from_columns() -> None:
    paths = [
        path for path in files_under("tier-posix/tiered") if path.parent.name == "CONSUME_QUEUE"
    ]
    assert len(paths) > 20
    for path in paths:
        data = path.read_bytes()
        units = decode_units(data)
        assert len(units) == len(data) // 20
        again = queue_unit.encode_units(
            log_offsets=units.log_offsets,
            message_bytes=units.message_bytes,
            tags_codes=units.tags_codes,
        )
        assert again == data, path.relative_to(GOLDEN)


@given(UNITS)
def test_one_unit_round_trips(unit: QueueUnit) -> None:
    data = queue_unit.encode_unit(**unit._asdict())
    assert len(data) == queue_unit.UNIT_BYTES
    assert decode_unit(b"xyz" + data, 3) == unit


@given(st.lists(UNITS))
def test_many_units_are_the_single_ones(units: list[QueueUnit]) -> None:
    data = queue_unit.encode_units(**columns(units))
    assert data == encode_one_by_one(units)
    decoded = decode_units(data)
    assert len(decoded) == len(units)
    for name, values in columns(units).items():
        assert getattr(decoded, name).tolist() == values
        assert getattr(decoded, name).dtype.isnative


@given(st.lists(UNITS, min_size=1), st.sampled_from([bytes, bytearray, memoryview]))
def test_a_view_copies_nothing_and_cannot_be_written(units: list[QueueUnit], kind: Any) -> None:
    data = kind(encode_one_by_one(units))
    view = view_units(data)
    assert view["log_offset"].tolist() == columns(units)["log_offsets"]
    assert np.shares_memory(view, np.frombuffer(data, np.uint8))
    assert not view.flags.writeable


def test_a_prefill_unit_is_known_by_its_bytes() -> None:
    assert queue_unit.PREFILL_BYTES.hex() == "00000000000000007fffffff0000000000000000"
    assert decode_unit(queue_unit.PREFILL_BYTES).is_prefill
    assert not QueueUnit(0, 100, 0).is_prefill
    assert not QueueUnit(1, 2**31 - 1, 0).is_prefill


@pytest.mark.parametrize(
    ("tags_code", "address"),
    [(-(2**63), True), (-(2**31) - 1, True), (-(2**31), False), (5, False)],
)
def test_codes_below_every_hash_are_addresses(tags_code: int, address: bool) -> None:
    assert queue_unit.is_extension_address(tags_code) is address


def test_cut_units_are_damage() -> None:
    data = queue_unit.PREFILL_BYTES * 3
    for size in range(20):
        with pytest.raises(SegmentCorruptError):
            decode_unit(data[:size])
    for size in range(len(data)):
        if size % 20:
            with pytest.raises(SegmentCorruptError, match="left over") as caught:
                decode_units(data[:size])
            assert caught.value.position == size // 20 * 20
    for position in (-1, -20, 41, 60, 2**70):
        with pytest.raises(SegmentCorruptError):
            decode_unit(data, position)


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"log_offset": 2**63}, "log_offset"),
        ({"message_bytes": 2**31}, "message_bytes"),
        ({"message_bytes": None}, "message_bytes"),
        ({"tags_code": -(2**63) - 1}, "tags_code"),
    ],
)
def test_a_unit_that_does_not_fit_is_refused_by_name(values: dict[str, Any], name: str) -> None:
    with pytest.raises(ValueError, match=rf"^{name}: "):
        queue_unit.encode_unit(**{**QueueUnit(1, 2, 3)._asdict(), **values})
    plural = {"log_offset": "log_offsets", "tags_code": "tags_codes"}
    many = {plural.get(name, name): [value] for name, value in values.items()}
    with pytest.raises(ValueError, match=rf"^{name}: "):
        queue_unit.encode_units(**{**columns([QueueUnit(1, 2, 3)]), **many})


@pytest.mark.parametrize(
    "log_offsets", [[1.5], ["1"], [[1]], [1, 2], np.array([2**63], np.uint64), [True, None]]
)
def test_columns_that_are_no_numbers_or_too_many_are_refused(log_offsets: Any) -> None:
    with pytest.raises(ValueError):
        queue_unit.encode_units(log_offsets=log_offsets, message_bytes=[1], tags_codes=[1])

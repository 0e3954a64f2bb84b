"""The keys of a run of records are those that decoding each message gives."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.flat.tiers import run_of
from tieredstore.codec.columns import Properties, keys_behind
from tieredstore.codec.java import index_key
from tieredstore.codec.key_hashes import key_hash
from tieredstore.codec.message import decode_message, encode_message
from tieredstore.index.contract import CommittedRun
from tieredstore.index.keys import keys_of_run
from tieredstore.model.values import Host
from tieredstore.testing.samples import BORN_HOST, STORE_HOST, TOPIC, a_record

IPV6 = Host(bytes(range(16)), 10911)
names = st.sampled_from(["KEYS", "UNIQ_KEY", "TAGS", "XKEYS", "KEYSX", "A"])
parts = st.sampled_from(["a", "b", " ", "主", "\x01", "\x02", "KEYS", "UNIQ_KEY\x01"])
texts = st.lists(parts, max_size=6).map("".join)
raw_properties = st.one_of(
    st.lists(st.tuples(names, texts)).map(
        lambda pairs: "".join(f"{name}\x01{value}\x02" for name, value in pairs).encode()
    ),
    st.binary(max_size=40),
    st.sampled_from(
        [b"KEYS\x01\x02KEYS\x01a", b"KEYS\x01a\x02KEYS\x01\x02", b"\xff\x02KEYS\x01\xff"]
    ),
)
hosts = st.sampled_from([STORE_HOST, IPV6])


def record_of(properties: bytes, *, topic: str = TOPIC, born: Host = BORN_HOST) -> bytes:
    return encode_message(
        topic=topic,
        queue_id=0,
        queue_offset=0,
        log_offset=0,
        born_timestamp=5,
        born_host=born,
        store_timestamp=1_700_000_000_123,
        store_host=STORE_HOST,
        body=b"body",
        property_bytes=properties,
    )


def committed(records: list[bytes]) -> CommittedRun:
    offsets = np.arange(len(records), dtype=np.int64) * 7
    return CommittedRun(run=run_of(3, records), log_offsets=offsets)


@given(st.lists(st.tuples(raw_properties, hosts, st.sampled_from(["T", "主" * 60, "T" * 200]))))
def test_keys_are_those_of_the_decoded_messages(rows: list[tuple[bytes, Host, str]]) -> None:
    records = [record_of(raw, topic=topic, born=born) for raw, born, topic in rows]
    found = keys_of_run(TOPIC, 3, 4, committed(records))
    wanted, counts = [], []
    for at, record in enumerate(records):
        message = decode_message(record)
        keys = dict.fromkeys([message.unique_key or "", *message.keys])
        keys.pop("", None)
        wanted += [(key_hash(index_key(TOPIC, key)), 7 * at, len(record)) for key in keys]
        counts += [len(keys)] if keys else []
    columns = found.columns
    assert found.key_counts.tolist() == counts
    assert wanted == list(
        zip(
            columns.key_hashes.tolist(),
            columns.log_offsets.tolist(),
            columns.message_bytes.tolist(),
            strict=True,
        )
    )
    assert set(columns.store_timestamps.tolist()) <= {1_700_000_000_123}


@pytest.mark.parametrize("cut", [0, 1, 50, 91, 120])
def test_a_record_that_is_cut_off_is_passed_over(cut: int) -> None:
    whole = a_record(1, properties={"KEYS": "a b"})
    damaged = whole[:cut] + b"\xff" * (len(whole) - cut)
    found = keys_of_run(TOPIC, 1, 2, committed([damaged, whole]))
    assert found.columns.log_offsets.tolist() == [7, 7]


def twins(length: int = 2048) -> tuple[str, str]:
    """Two texts with the same 64-bit hash, for any factor: a Thue-Morse word and its complement."""
    bits = [number.bit_count() % 2 for number in range(length)]
    return "".join("ab"[bit] for bit in bits), "".join("ba"[bit] for bit in bits)


def test_keys_of_one_hash_are_two_keys_and_equal_ones_are_one() -> None:
    one, other = twins()
    assert key_hash(index_key(TOPIC, one)) == key_hash(index_key(TOPIC, other))
    rows = [f"{one} {other}", f"{one} {one}", f"a {one} b a {other} {one}", "a"]
    records = [a_record(at, properties={"KEYS": keys}) for at, keys in enumerate(rows)]
    assert keys_of_run(TOPIC, 1, 2, committed(records)).key_counts.tolist() == [2, 1, 4, 1]
    record = a_record(1, properties={"KEYS": one, "UNIQ_KEY": other})
    assert keys_of_run(TOPIC, 1, 2, committed([record])).key_counts.tolist() == [2]


@pytest.mark.parametrize("odd", ["主", "e"])
def test_a_long_run_gives_what_its_messages_give_alone(odd: str) -> None:
    texts = ["", "k", "k k", f"{odd} k {odd}", "a  b  ", " " * 50, "x" * 9000]
    records = [
        a_record(at, properties={"KEYS": f"{texts[at % 7]} n{at // 14}", "UNIQ_KEY": f"u{at}"})
        for at in range(1400)
    ]
    together = keys_of_run(TOPIC, 1, 2, committed(records))
    alone = [keys_of_run(TOPIC, 1, 2, committed([record])) for record in records]
    assert together.key_counts.tolist() == [int(each.key_counts[0]) for each in alone]
    hashes = np.concatenate([each.columns.key_hashes for each in alone])
    assert np.array_equal(together.columns.key_hashes, hashes)


@pytest.mark.parametrize("length", [1, 16_300, 32_700, 65_500, 65_600, 200_000])
def test_keys_of_texts_of_any_length_are_hashed_alike(length: int) -> None:
    texts = [b"UNIQ_KEY\x01u%d\x02KEYS\x01a %s b\x02" % (n, b"k" * length) for n in range(3)]
    found = keys_behind("T#", Properties.of_texts(texts))
    wanted = [[f"u{n}", "a", "k" * length, "b"] for n in range(3)]
    assert found.counts.tolist() == [4, 4, 4]
    assert found.hashes.tolist() == [key_hash(f"T#{key}") for keys in wanted for key in keys]


def test_messages_whose_keys_have_gaps_are_told() -> None:
    values = [b"a b", b" a", b"a  b", b"a ", b" ", b"", b"a", b"a b c"]
    texts = [b"TAGS\x01  \x02KEYS\x01" + value + b"\x02" for value in values]
    assert keys_behind("", Properties.of_texts(texts)).gaps.tolist() == [1, 2, 3, 4]

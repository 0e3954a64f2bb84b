"""Entries and states as bytes, and the fold of entries compared with a slow one."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest

from tests.roundlog.truth import Picture, Truth
from tieredstore.driver.metadata import Change, DeleteSegment, Put, PutNote
from tieredstore.model.errors import (
    MetadataError,
    PositionMismatchError,
    SegmentNotFoundError,
    SegmentSealedError,
)
from tieredstore.model.values import SegmentRecord, SegmentType, TopicRecord
from tieredstore.roundlog.draft import Draft, DraftWrite, compose, place
from tieredstore.roundlog.entry import NO_ROW, Begun, Entry, Extents, Sealed, SegmentKey
from tieredstore.roundlog.frames import FrameKind, NeedMore, decode, encode
from tieredstore.roundlog.state import NAME_RESTS_MS, LogState

KEY: SegmentKey = ("broker/topic/0", SegmentType.COMMIT_LOG, 0)
OTHER: SegmentKey = ("broker/topic/1", SegmentType.CONSUME_QUEUE, 20)
KEYS = [(f"broker/topic/{queue}", SegmentType.COMMIT_LOG, 0) for queue in range(4)]

GOLDEN_ENTRY = (
    "5453524c010001007c0300004801000000000000000000000300000000000000e9b2942a0000000000000000"
    "000000000000000000000000f98ee27ec707de2278019d523b53c3300cfe2f9ac3d5a505daec0c4c2c6cbd0e"
    "8ea3a68646367ed0835eff3bb2130ef7581aa638b2be873ef9047b942dd427f0f81e9114423daf00ad51fb7c"
    "22936b40022a08bae77b5141839d26ff3874051731972241bdd930bc71e60ddd2c18abd58c81a212db6d056a"
    "2fa943cf4d27b03140cda25d8f1498da996372616560dd3f04103eeda82c3d3eef761e19ce467c902132633a"
    "ea2f6e59b08c4319f085bdf26d6fa1be1b0d17a53423b54561cd04280f45459ccfd58fcf3cc9afcbfcfbc4b1"
    "b1da70558fdf0b470e3dba8fec04ea1b968cb6bd74c61adb333b3687d8d3100cc9943150ec1b7429f33c3968"
    "0af7cbc101f731d751b729aab40c8e844bc9ed08b6c6eba00d4d808b027e40ea98fb7aed450136cd2baab4d1"
    "6b8d97ca66d8ecffc0caa909b20ff3e562b5ba15656ef9594fe028b1fc9c2620d7bcf76fe27417bb6f6e65"
)
GOLDEN_STATE = (
    "5453524c0100020028050000a001000000000000000000000000000000000000000000000000000000000000"
    "000000000000000000000000d228560f71fde5f978019d93cd5683301085df65d6f194fea82d6fe04637ee2a"
    "c743c39462214108b6cae9bb7b93a052db4529ab10eedcf9e68796361c2714b654f37bc34a328563415c6ab9"
    "71279315b80a0429de9bc7a6587145e144409e16ac4c4de172898055a5b75c8d8c2e33390a4804228822ab8a"
    "7386fd1267b969d4b6d307622c969155243efd4150c5b5b1da1667b98955ca56dc52d9180ac93913547a6769"
    "ddeb03d453d17d0ae9a509f04820c006b94d6c1a58801dd65c7df0b3abe506b84d99c4c6bd435594101d0ea2"
    "054cce06e5fe66f359ff595be5c5503fdc57d0f81c5da3ff4a2f6383d19c749ccc67e927b58a6b7e5aaf6b46"
    "df507c2f739d7d418296c98a8febbfc50839cd946d51d712bb062ae95d2cfc3c7b37e85a64a7a5f3a6507e5a"
    "2ab6fb422e1346e3982853e66ee62b800ac6bb2cb14580cec202c9f6b40b751c105f1a3beec5027840e4a21f"
    "b93758e757e537fccaecdea3d4756632ad069004a72439ab143dba9ca4df43fcabb61abd7a636906789ce1d0"
    "7e9306702c26a7d5c84a0ec0b81fcfa6f3f924381aad2f69e876dc9c8119b62570880edf85f0a355"
)


class Folded:
    """A log without a bucket: a state, the truth, and the objects that entries name."""

    def __init__(self) -> None:
        self.state = LogState()
        self.truth = Truth()
        self.entries: list[bytes] = []
        self.objects: dict[str, bytes] = {}
        self.epoch = 1

    def put(self, *drafts: Draft, staged: list[Change] | None = None, inline: int = 100) -> Entry:
        placed = place(drafts, inline_bytes_max=inline)
        names = [f"data/{len(self.entries)}-{each}" for each in range(len(placed.objects))]
        joined = [b"".join(map(bytes, each.parts)) for each in placed.objects]
        self.objects |= dict(zip(names, joined, strict=True))
        entry = compose(
            self.state,
            drafts,
            placed,
            names,
            staged or [],
            epoch=self.epoch,
            nonce=f"n{len(self.entries)}",
            time_ms=1_000 * len(self.entries),
        )
        return self.fold(entry.encoded(placed.inline))

    def fold(self, data: bytes) -> Entry:
        entry = Entry.decoded(data, "it", object_bytes=len(data))
        counts = self.state.fold(entry)
        self.entries.append(data)
        assert counts == self.truth.fold(entry, lambda name: self.objects[name] if name else data)
        assert Picture.of(self.state) == self.truth.picture()
        for segment in self.state.segments.values():
            if segment.sealed is None:
                assert self.read(segment.number) == self.truth.segments[segment.number].data
        return entry

    def read(self, number: int) -> bytes:
        found = b""
        for each in self.state.places(number):
            own = each.object.startswith("log/")
            data = self.entries[int(each.object[4:]) - 1] if own else self.objects[each.object]
            found += data[each.offset : each.offset + each.length]
        return found


def write(key: SegmentKey, position: int, data: bytes, *, end_ms: int | None = None) -> Draft:
    rows = []
    if end_ms is not None:
        path, kind, base = key
        size = position + len(data)
        row = SegmentRecord(path=path, type=kind, base_offset=base, size=size, create_timestamp=5)
        rows = [replace(row, begin_timestamp=1, end_timestamp=end_ms)]
    return Draft(writes=[DraftWrite(key, position, data)], rows=rows)


def merge(log: Folded, sequences: list[int]) -> Draft:
    """Copy all live extents of these entries into one new object."""
    name = f"data/merged-{len(log.entries)}"
    rows, data = [], b""
    for number in log.state.segments:
        if not log.state.is_open(number):
            continue
        for sequence in sequences:
            chunk = log.state.chunks[sequence]
            own = chunk.extents.of_segment(number)
            for _, position, length, index, offset, crc, _, _ in own.rows():
                source = chunk.objects[index]
                held = (
                    log.entries[int(source[4:]) - 1]
                    if source.startswith("log/")
                    else log.objects[source]
                )
                rows.append((number, position, length, 1, len(data), crc, NO_ROW, NO_ROW))
                data += held[offset : offset + length]
    log.objects[name] = data
    return Draft(merged=sequences, extents=Extents.of(rows).in_order(), objects=[name])


def test_random_entries_come_to_what_the_rules_say() -> None:
    for seed in range(25):
        dice, log = Random(seed), Folded()
        for step in range(30):
            key = dice.choice(KEYS)
            segment = log.state.segment(key)
            size = 0 if segment is None else segment.size
            draw = dice.random()
            if draw < 0.5:
                drafts = [
                    write(
                        each,
                        0 if (known := log.state.segment(each)) is None else known.size,
                        dice.randbytes(dice.choice([1, 30, 130])),
                        end_ms=dice.choice([None, step]),
                    )
                    for each in dice.sample(KEYS, 2)
                ]
                log.put(*drafts)
            elif draw < 0.6:
                gone = Draft(deleted=[key], changes=[DeleteSegment(*key)])
                log.put(write(key, size, b"before"), gone, write(key, 0, b"anew", end_ms=step))
            elif draw < 0.7 and segment is not None and segment.sealed is None:
                log.put(Draft(sealed=[Sealed(segment.number, f"sealed-{step}", size, 7)]))
            elif draw < 0.8 and log.state.chunks:
                some = dice.sample(list(log.state.chunks), dice.randint(1, len(log.state.chunks)))
                log.put(merge(log, some))
            elif draw < 0.9:
                log.put(Draft(deleted=[key]), Draft(changes=[PutNote("k", "n", step)]))
            else:
                log.epoch += dice.choice([0, 1])
                log.put(Draft())
            if dice.random() < 0.2:  # an opened state continues like the folded one
                data = log.state.encoded()
                log.state = LogState.decoded(data, "it")
                assert log.state.encoded() == data
        whole = LogState()
        for number, data in enumerate(log.entries, 1):
            whole.fold(Entry.decoded(data, f"{number}", object_bytes=len(data)))
        assert whole.encoded() == log.state.encoded()


def test_entries_of_an_epoch_that_is_over_count_for_nothing() -> None:
    log = Folded()
    log.put(write(KEY, 0, b"one"))
    stale = compose(
        log.state,
        [write(KEY, 3, b"x" * 200)],
        place([write(KEY, 3, b"x" * 200)], inline_bytes_max=10),
        ["data/stale"],
        [],
        epoch=1,
        nonce="n",
        time_ms=9,
    )
    log.epoch = 2
    log.put(Draft())
    log.objects["data/stale"] = b"x" * 200
    late = replace(stale, sequence=3)
    assert not log.state.fold(late)
    assert log.state.sequence == 3
    assert log.state.segments[1].size == 3
    assert {"data/stale", "log/00000000000000000003"} <= set(log.state.dead)


def test_a_sealing_of_an_epoch_that_is_over_leaves_objects_whose_names_nobody_else_has() -> None:
    log = Folded()
    log.put(write(KEY, 0, b"one"))
    log.epoch = 2
    log.put(Draft())
    keys = ("data/own", "load/own", "key of the segment")
    sealed = tuple(Sealed(1, key, 3, 7) for key in keys)
    assert not log.state.fold(Entry(sequence=3, epoch=1, nonce="n", time_ms=0, sealed=sealed))
    assert log.state.is_open(1)
    assert [key for key in keys if key in log.state.dead] == ["data/own", "load/own"]


def test_an_epoch_that_has_not_begun_counts_for_nothing() -> None:
    state = LogState()
    assert not state.fold(Entry(sequence=1, epoch=1, nonce="n", time_ms=0))
    assert state.epoch == 0


def test_a_merge_of_what_is_gone_changes_nothing_and_its_object_dies() -> None:
    log = Folded()
    log.put(write(KEY, 0, b"one"))
    log.put(write(KEY, 3, b"two"))
    draft = merge(log, [1, 2])
    log.put(draft)
    again = replace(Entry.decoded(log.entries[-1], "it"), sequence=4, objects=("data/late",))
    assert log.state.fold(again)
    assert "data/late" in log.state.dead
    assert log.read(1) == b"onetwo"


def test_a_merge_that_goes_on_using_an_object_keeps_it_alive() -> None:
    log = Folded()
    log.put(write(KEY, 0, b"x" * 200))
    name = log.state.chunks[1].objects[1]
    extents = log.state.chunks[1].extents
    log.put(Draft(merged=[1], extents=extents, objects=log.state.chunks[1].objects[1:]))
    assert name not in log.state.dead
    assert log.read(1) == b"x" * 200


def test_a_row_that_is_staged_and_grows_in_the_same_entry_has_its_size() -> None:
    path, kind, base = KEY
    row = SegmentRecord(path=path, type=kind, base_offset=base, create_timestamp=5)
    log = Folded()
    log.state.tables.apply([Put(row)])
    entry = log.put(write(KEY, 0, b"one", end_ms=9), staged=[Put(row)])
    assert entry.changes == (Put(row),)
    assert log.state.tables.segments[kind][path][base].size == 3
    assert log.state.tables.segments[kind][path][base].end_timestamp == 9


def test_a_sealing_that_missed_bytes_is_refused_alone() -> None:
    log = Folded()
    log.put(write(KEY, 0, b"one"))
    seal, grow = Draft(sealed=[Sealed(1, "key", 3, 7)]), write(KEY, 3, b"two")
    log.put(grow, seal)
    assert isinstance(seal.error, PositionMismatchError)
    assert grow.error is None
    seal, grow = Draft(sealed=[Sealed(1, "key", 6, 7)]), write(KEY, 6, b"three")
    log.put(seal, grow)
    assert isinstance(grow.error, SegmentSealedError)
    assert log.state.segments[1].size == 6


def test_a_draft_writes_to_a_segment_more_than_once() -> None:
    log = Folded()
    for start in (0, 4):  # the segments are begun first, then they exist
        writes = [
            DraftWrite(key, start + at, text)
            for at, text in ((0, b"on"), (2, b"e,"))
            for key in (KEY, OTHER)
        ]
        draft = Draft(writes=writes)
        log.put(draft)
        assert draft.error is None
    assert log.read(1) == log.read(2) == b"one,one,"


def test_drafts_that_cannot_be_in_an_entry_say_why() -> None:
    log = Folded()
    log.put(write(KEY, 0, b"one"))
    wrong, right, gone = write(KEY, 9, b"x"), write(OTHER, 0, b"y"), Draft(merged=[8])
    taken = Draft(taken=[(KEY, Sealed(0, "key", 3, None))])
    log.put(wrong, right, gone, taken)
    assert isinstance(wrong.error, PositionMismatchError)
    assert right.error is None
    assert isinstance(gone.error, SegmentNotFoundError)
    assert isinstance(taken.error, PositionMismatchError)


def test_a_sealed_object_that_another_segment_has_does_not_die() -> None:
    log = Folded()
    log.put(write(KEY, 0, b"one"))
    log.put(Draft(deleted=[KEY]))
    log.put(write(KEY, 0, b"one"))
    log.put(Draft(sealed=[Sealed(2, "key", 3, 7)]))
    late = Entry(sequence=5, epoch=1, nonce="n", time_ms=0, sealed=(Sealed(1, "key", 3, 7),))
    assert log.state.fold(late)
    assert "key" not in log.state.dead
    log.state.fold(Entry(sequence=6, epoch=1, nonce="n", time_ms=50, deleted=(2,)))
    assert "key" in log.state.dead


def test_a_key_rests_from_when_its_object_was_deleted() -> None:
    state = LogState()
    begun = Entry(
        sequence=1,
        epoch=1,
        nonce="n",
        time_ms=100,
        begins_epoch=True,
        begun=(Begun(1, *KEY),),
        sealed=(Sealed(1, "key", 3, None),),
    )
    state.fold(begun)
    state.fold(Entry(sequence=2, epoch=1, nonce="n", time_ms=200, deleted=(1,)))
    assert state.rests("key", NAME_RESTS_MS * 9)  # nobody has deleted it yet
    state.fold(Entry(sequence=3, epoch=1, nonce="n", time_ms=900, dropped=("key",)))
    assert state.rests("key", NAME_RESTS_MS + 899)
    assert not state.rests("key", NAME_RESTS_MS + 900)


def test_keys_that_have_rested_are_forgotten() -> None:
    state = LogState()
    day_ms = NAME_RESTS_MS // 30
    for day in range(100):
        state.fold(_sealed_and_deleted(state, f"key-{day}", day * day_ms))
        state.fold(_dropped(state, f"key-{day}", day * day_ms))
    assert list(state.rested) == [f"key-{day}" for day in range(69, 100)]


def test_a_key_whose_object_stayed_for_long_rests_from_when_it_was_deleted() -> None:
    state = LogState()
    state.fold(_sealed_and_deleted(state, "key", 0))
    late_ms = 3 * NAME_RESTS_MS
    state.fold(_sealed_and_deleted(state, "other", late_ms))
    for each in (state, LogState.decoded(state.encoded(), "it")):
        each.fold(_dropped(each, "key", late_ms))
        assert each.rests("key", late_ms + NAME_RESTS_MS - 1)
        assert not each.rests("key", late_ms + NAME_RESTS_MS)


def _sealed_and_deleted(state: LogState, key: str, time_ms: int) -> Entry:
    number = state.next_number
    return Entry(
        sequence=state.sequence + 1,
        epoch=1,
        nonce="n",
        time_ms=time_ms,
        begins_epoch=not state.sequence,
        begun=(Begun(number, f"broker/{key}/0", SegmentType.COMMIT_LOG, 0),),
        deleted=(number,),
        sealed=(Sealed(number, key, 3, None),),
    )


def _dropped(state: LogState, key: str, time_ms: int) -> Entry:
    return Entry(sequence=state.sequence + 1, epoch=1, nonce="n", time_ms=time_ms, dropped=(key,))


@pytest.mark.parametrize(
    "entry",
    [
        {"sequence": 3},
        {"extents": [(1, 4, 1, 0, 0, 0, -2, -2)]},
        {"extents": [(9, 0, 1, 0, 0, 0, -2, -2)]},
        {"extents": [(1, 3, 1, 0, 0, 0, -2, -2), (1, 5, 1, 0, 0, 0, -2, -2)]},
        {"extents": [(2, 3, 1, 0, 0, 0, -2, -2)]},
        {"begun": (Begun(1, *OTHER),)},
        {"begun": (Begun(9, *OTHER),)},
        {"sealed": (Sealed(1, "key", 2, 0),)},
    ],
)
def test_an_entry_that_cannot_follow_is_damage_and_changes_nothing(entry: dict[str, Any]) -> None:
    log = Folded()
    log.put(write(KEY, 0, b"one"), write(OTHER, 0, b"two"))
    log.put(Draft(sealed=[Sealed(2, "other", 3, 7)]))
    before = log.state.encoded()
    if "extents" in entry:
        entry = {"extents": Extents.of(entry["extents"])}
    bad = Entry(**{"sequence": 3, "epoch": 1, "nonce": "n", "time_ms": 0, **entry})
    if entry == {"sequence": 3}:
        bad = replace(bad, sequence=4)
    with pytest.raises(MetadataError):
        log.state.fold(bad)
    assert log.state.encoded() == before


# Bytes


def example() -> tuple[bytes, bytes]:
    log = Folded()
    log.put(
        write(KEY, 0, b"one", end_ms=9),
        Draft(changes=[Put(TopicRecord(topic="topic", topic_id=3))]),
    )
    return log.entries[0], log.state.encoded()


def test_an_entry_and_a_state_of_long_ago_are_read() -> None:
    """Each is still written the same, except for differences between versions of zlib."""
    entry, state = example()
    old = bytes.fromhex(GOLDEN_ENTRY)
    found = Entry.decoded(old, "it", object_bytes=len(old))
    assert found.encoded([old[found.payload_start :]]) == entry
    assert LogState.decoded(bytes.fromhex(GOLDEN_STATE), "it").encoded() == state


def test_of_an_entry_its_beginning_suffices() -> None:
    data, _ = example()
    known = Entry.decoded(data, "it", object_bytes=len(data))
    for end in range(len(data)):
        if end < known.payload_start:
            with pytest.raises(NeedMore) as more:
                Entry.decoded(data[:end], "it", object_bytes=len(data))
            assert end < more.value.bytes <= known.payload_start
        else:
            found = Entry.decoded(data[:end], "it", object_bytes=len(data))
            assert found.payload_start == known.payload_start


def hostile(kind: FrameKind, field: str, value: object) -> bytes:
    entry, state = example()
    data = entry if kind is FrameKind.ENTRY else state
    frame = decode(data, kind=kind, name="it", object_bytes=len(data))
    head: dict[str, Any] = {**frame.head, field: value}
    columns = dict(frame.columns)
    if field in columns:
        head = dict(frame.head)
        columns[field] = np.array(value)
    return encode(kind, head, columns, [data[frame.payload_start :]])


WRONG: list[tuple[str, object]] = [
    ("sequence", -1),
    ("epoch", "x"),
    ("nonce", 3),
    ("time", 2**63),
    ("begun", [[1, "../up", 0, 0]]),
    ("begun", [[1, "broker/topic/0", 7, 0]]),
    ("begun", [[1, "broker/topic/0", 0, -1]]),
    ("begun", [[1]]),
    ("sealed", [[1, "log/00000000000000000001", 3, 7]]),
    ("sealed", [[1, "", 3, 7]]),
    ("deleted", [-1]),
    ("changes", [{"put": "house"}]),
    ("changes", [7]),
    ("merged", ["x"]),
    ("dropped", [1]),
    ("objects", ["state/1"]),
    ("object", [1]),
    ("position", [-1]),
    ("position", [2**63 - 1]),
    ("length", [0]),
    ("length", [9]),
    ("offset", [1]),
    ("begin", [-3]),
    ("number", [1, 2]),
]


@pytest.mark.parametrize(("field", "value"), WRONG)
def test_an_entry_with_a_wrong_field_is_damage(field: str, value: object) -> None:
    data = hostile(FrameKind.ENTRY, field, value)
    with pytest.raises(MetadataError):
        Entry.decoded(data, "it", object_bytes=len(data))


WRONG_STATE: list[tuple[str, object]] = [
    ("sequence", -1),
    ("epoch", None),
    ("nextNumber", 1),
    ("segments", [[1, "broker/topic/0", 0, 0], [1, "broker/topic/1", 0, 0]]),
    ("segments", []),
    ("sealed", [[7, "key", 3, 7]]),
    ("sealed", [[1, "key", 4, 7]]),
    ("sealed", [[1, "epoch/1", 3, 7]]),
    ("chunks", []),
    ("chunks", [[2, 0, 1, []]]),
    ("chunks", [[1, 0, 2, []]]),
    ("chunks", [[1, 0, 1, ["key"]]]),
    ("dead", {"a": -1}),
    ("rested", 7),
    ("changes", [{}]),
    ("size", [1, 2]),
    ("extent_object", [1]),
    ("extent_object", [2]),
    ("extent_length", [-1]),
]


@pytest.mark.parametrize(("field", "value"), WRONG_STATE)
def test_a_state_with_a_wrong_field_is_damage(field: str, value: object) -> None:
    with pytest.raises(MetadataError):
        LogState.decoded(hostile(FrameKind.STATE, field, value), "it")


def test_an_extent_of_a_state_lies_in_an_object_of_its_own_entry() -> None:
    """Not in one that another entry names."""
    _, data = example()
    frame = decode(data, kind=FrameKind.STATE, name="it", object_bytes=len(data))
    chunks = [[1, 0, 0, ["data/0000000001-of-another"]], [2, 0, 1, []]]
    for number, is_named in ((0, True), (1, False)):
        head: dict[str, Any] = {**frame.head, "sequence": 2, "chunks": chunks}
        columns = {**frame.columns, "extent_object": np.array([number])}
        state = encode(FrameKind.STATE, head, columns, ())
        if is_named:
            assert LogState.decoded(state, "it").sequence == 2
        else:
            with pytest.raises(MetadataError, match="an object that is not named"):
                LogState.decoded(state, "it")


def test_a_segment_that_is_begun_anew_takes_the_place_of_the_one_before() -> None:
    state = LogState()
    for number, name in enumerate(("first", "second"), 1):
        state.take_in(KEY, name, 3)
        assert (list(state.segments), state.numbers[KEY]) == ([number], number)
    assert state.names() == {"second"}

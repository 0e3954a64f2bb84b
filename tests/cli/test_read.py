"""A tier's messages, read in order and found by key: on Java's tier and on damaged ones."""

from __future__ import annotations

import base64
import hashlib
import os
import zlib
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import pytest

from tests.cli.cli_kit import SIZE_OPTIONS, Command, Ran, Row, java_row, messages, picture
from tests.cli.tier_kit import (
    CATALOGUE,
    LEGACY,
    TIER,
    as_java_told,
    asked,
    in_store_order,
    java_messages,
    named,
    segment_file,
    tier_beside,
    verb_of,
)
from tests.cli.verb_kit import CLEAN
from tests.codec.golden_files import BROKER, expected
from tests.jobs.written_tier import WrittenTier, posix_config
from tieredstore.access.reader import TieredReader
from tieredstore.cli import read
from tieredstore.cli.output import ExitCode
from tieredstore.cli.read import walk_tier
from tieredstore.driver.runtime import Runtime
from tieredstore.local import LocalConfig, LocalMessageStore
from tieredstore.metadata.json_store import JsonMetadataStore
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import SegmentError
from tieredstore.model.messages import GetResult, Message
from tieredstore.model.values import QueueKey, SegmentType

FIELDS = [
    *("topic", "queue_id", "queue_offset", "log_offset", "size", "store_timestamp"),
    *("born_timestamp", "tags_code", "tags", "keys", "unique_key", "properties", "sha256"),
    "body_sha256",
]
TOPICS = sorted({row["topic"] for row in java_messages()})


@pytest.mark.parametrize("topic", TOPICS)
def test_cat_prints_every_message_in_the_order_of_store_times(command: Command, topic: str) -> None:
    ran = asked(command, TIER, "cat", topic, "--json").done()
    assert as_java_told(ran.rows) == in_store_order(java_messages(topic))
    local = {(row["topic"], row["queue_id"], row["queue_offset"]): row for row in in_queues()}
    for row in ran.rows:
        its_local = local[row["topic"], row["queue_id"], row["queue_offset"]]
        for field in ("born_timestamp", "tags", "keys", "unique_key", "body_sha256"):
            assert row[field] == its_local[field]


def in_queues() -> list[Row]:
    return [java_row(row) for row in messages() if row["inConsumeQueue"]]


def test_all_topics_together_are_all_messages(command: Command) -> None:
    counts = [len(asked(command, TIER, "cat", topic, "--json").rows) for topic in TOPICS]
    assert sum(counts) == len(java_messages()) == 533


def test_cat_reads_a_tier_of_older_versions(command: Command) -> None:
    wanted = expected("legacy.expect.json")["messages"]
    ran = asked(command, LEGACY, "cat", "GoldAa", "--json").done()
    names = {"queue_offset": "queueOffset", "log_offset": "physicalOffset", "size": "size"}
    names |= {"tags_code": "tagsCode", "store_timestamp": "storeTimestamp", "sha256": "sha256"}
    assert [{ours: row[ours] for ours in names} for row in ran.rows] == [
        {ours: row[java] for ours, java in names.items()} for row in wanted
    ]


@pytest.mark.parametrize(
    ("queue", "begin", "count"),
    [
        (None, "0", 0),
        (None, "0", 7),
        (0, "0", None),
        (1, "20", None),
        (2, "38", None),
        (2, "39", None),
        (2, "1000", 4),
        (None, "30", 11),
        (None, "1795171560000", None),
        (1, "1795171560000", 3),
        (None, "2026-11-20T10:46:00Z", 5),
        (2, "2026-11-20T10:46:00Z", None),
        (None, "2100-01-01", None),
        (None, "0", 2**64),
    ],
)
def test_cat_prints_what_is_asked_for(
    command: Command, queue: int | None, begin: str, count: int | None
) -> None:
    options: list[object] = [
        "--from" if "-" in begin or len(begin) > 12 else "--from-offset",
        begin,
    ]
    options += [] if queue is None else ["--queue", queue]
    options += [] if count is None else ["--max", count]
    ran = asked(command, TIER, "cat", "GoldAa", *options, "--json").done()
    time = {"2026-11-20T10:46:00Z": 1795171560000, "2100-01-01": 2**62}.get(begin, 0)
    time = time or (int(begin) if len(begin) == 13 else 0)
    offset = 0 if time else int(begin)
    wanted = [
        row
        for row in in_store_order(java_messages("GoldAa", queue))
        if row["queue_offset"] >= offset and row["store_timestamp"] >= time
    ]
    assert as_java_told(ran.rows) == wanted[:count]


def test_an_offset_of_13_digits_is_no_time(command: Command) -> None:
    """RocketMQ's offsets have 63 bits. Read as a time, this one came before all messages, so all
    were printed."""
    ran = asked(command, TIER, "cat", "GoldAa", "--from-offset", 10**12, "--json").done()
    assert ran.rows == []


def test_cat_goes_from_page_to_page(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read, "_PAGE_COUNT_MAX", 3)
    rows = asked(command, TIER, "cat", "GoldAa", "--json").rows
    assert as_java_told(rows) == in_store_order(java_messages("GoldAa"))


def by_scan(rows: list[Row], time: int, *, upper: bool) -> int:
    """The offset that a look at every message finds."""
    exact = [row["queue_offset"] for row in rows if row["store_timestamp"] == time]
    later = [row["queue_offset"] for row in rows if row["store_timestamp"] >= time]
    if upper and exact:
        return int(exact[-1])
    return int(later[0]) if later else int(rows[-1]["queue_offset"]) + 1


@pytest.mark.parametrize("queue", [("GoldAa", 0), ("GoldAa", 2), ("GoldBB", 1)])
def test_offset_is_what_a_scan_finds(command: Command, queue: tuple[str, int]) -> None:
    rows = java_messages(*queue)
    times = [row["store_timestamp"] for row in rows[:: len(rows) // 6]]
    for time in [0, *times, times[2] + 1, times[3] - 1, rows[-1]["store_timestamp"] + 1]:
        for upper in (False, True):
            words = (*queue, time, *(["--upper"] if upper else []), "--json")
            assert asked(command, TIER, "offset", *words).done().rows == [
                {
                    "topic": queue[0],
                    "queue_id": queue[1],
                    "timestamp": time,
                    "boundary": "upper" if upper else "lower",
                    "queue_offset": by_scan(rows, time, upper=upper),
                }
            ]


# The words after the verb, for a tier and for a local store.
CAT: dict[str, tuple[object, ...]] = {
    "tier": ("cat", "GoldAa", *named(TIER)),
    "local": ("local", "cat", CLEAN, "GoldAa", *SIZE_OPTIONS),
}
OFFSET: dict[str, tuple[object, ...]] = {
    "tier": ("offset", *named(TIER), "GoldAa", 0),
    "local": ("local", "offset", *SIZE_OPTIONS, CLEAN, "GoldAa", 0),
}


@pytest.mark.parametrize("place", CAT)
def test_a_message_has_exactly_the_promised_fields(command: Command, place: str) -> None:
    rows = command.run(*CAT[place], "--json").rows
    assert all(list(row) == FIELDS for row in rows)
    assert all(row["properties"].get("TAGS") == row["tags"] for row in rows)
    for row in command.run(*CAT[place], "--json", "--with-body").rows:
        assert list(row) == [*FIELDS, "body"]
        body = base64.b64decode(row["body"], validate=True)
        assert hashlib.sha256(body).hexdigest() == row["body_sha256"]


@pytest.mark.parametrize("place", CAT)
def test_cat_for_people_is_a_line_a_message(command: Command, place: str) -> None:
    ran = command.run(*CAT[place], "--max", "3", "--with-body")
    head, *lines = ran.out.splitlines()
    titles = ["topic/queue/offset", "stored", "size", "tags", "keys", "body"]
    first = ["GoldAa/0/0", "2026-11-20T10:45:32.778Z", "493", "B"]
    if place == "local":
        titles, first = ["log", "offset", *titles], ["0", *first]
    assert head.split() == titles
    assert lines[0].split()[: len(first)] == first
    assert len(lines) == 3


@pytest.mark.parametrize("place", OFFSET)
def test_offset_takes_iso_times_and_prints_a_number(command: Command, place: str) -> None:
    for time in ("1795171540000", "2026-11-20T10:45:40Z", "2026-11-20T11:45:40+01:00"):
        assert command.run(*OFFSET[place], time).out == "8\n"


def keys_of(row: Row) -> set[str]:
    return {row["unique_key"] or "", *(row["keys"] or "").split(" ")} - {""}


def test_query_finds_what_a_scan_finds_newest_first(command: Command) -> None:
    """Java's last index file was not uploaded, so the youngest messages are not found."""
    found_count = 0
    for topic in TOPICS:
        rows = asked(command, TIER, "cat", topic, "--json").rows
        for key in sorted({key for row in rows for key in keys_of(row)})[::60]:
            ran = asked(command, TIER, "query", topic, key, "--max", 500, "--json")
            assert (ran.code, "no such message" in ran.err) == (0, not ran.rows)
            assert all(list(row) == FIELDS for row in ran.rows)
            wanted = [row for row in rows if key in keys_of(row)]
            assert all(row in wanted for row in ran.rows)
            times = [row["store_timestamp"] for row in ran.rows]
            assert times == sorted(times, reverse=True)
            found_count += len(ran.rows)
    assert found_count > 15


def test_a_window_and_a_limit_are_kept(command: Command) -> None:
    topic = TOPICS[0]
    rows = asked(command, TIER, "cat", topic, "--json").rows
    key = max(
        {key for row in rows for key in keys_of(row)},
        key=lambda key: sum(key in keys_of(row) for row in rows),
    )
    every = asked(command, TIER, "query", topic, key, "--max", 500, "--json").rows
    assert len(every) > 2
    ran = asked(command, TIER, "query", topic, key, "--max", 2, "--json")
    assert ran.rows == every[:2]
    assert "there are more than 2" in ran.err
    time = every[1]["store_timestamp"]
    window = ("--from", time, "--until", time)
    at_once = asked(command, TIER, "query", topic, key, *window, "--json").rows
    assert at_once == [row for row in every if row["store_timestamp"] == time]
    assert asked(command, TIER, "query", topic, key).out.count("\n") >= 2


def test_a_key_that_is_not_there_is_no_error_and_a_topic_is(command: Command) -> None:
    ran = asked(command, TIER, "query", TOPICS[0], "absent")
    assert (ran.code, ran.out) == (0, "")
    assert ran.err == "tieredstore: note: the uploaded index has no such message\n"
    asked(command, TIER, "query", "NoTopic", "absent").refused(ExitCode.NOT_THERE)


def test_where_the_index_was_not_uploaded_to_the_end_a_note_says_what_helps(
    command: Command, tmp_path: Path
) -> None:
    store, named = ("--store-path", tmp_path), tier_beside(tmp_path)
    for key in ("first", "second"):
        command.run("put", "Orders", *store, "--body", "x", "--key", key)
        assert command.run("offload", *named).code == 0
        ran = command.run("query", "Orders", key, *named, "--json")
        assert (ran.code, [row["keys"] for row in ran.rows], ran.err) == (0, [key], "")
        elsewhere = (*named, "--catalogue", "published")
        ran = command.run("query", "Orders", key, *elsewhere, "--json")
        assert (ran.code, ran.out, ran.err.count("\n")) == (0, "", 2)  # one line: it is a copy
        reach = ("0 of 1", "1 of 2")[key == "second"]
        assert f"of Orders/0 it has the offsets below {reach}" in ran.err
        assert "`offload --seal`" in ran.err
        assert command.run("offload", *named, "--seal").code == 0
        assert len(command.run("query", "Orders", key, *named, "--json").rows) == 1
        assert "does not reach" not in command.run("query", "Orders", "absent", *elsewhere).err


def test_an_answer_that_may_lack_something_says_so_also_where_something_was_found(
    command: Command, tmp_path: Path
) -> None:
    store, named = ("--store-path", tmp_path), tier_beside(tmp_path)
    for sealed in (("--seal",), ()):
        command.run("put", "Orders", *store, "--body", "x", "--key", "shared")
        assert command.run("offload", *named, *sealed).code == 0
    assert len(command.run("query", "Orders", "shared", *named, "--json").rows) == 2
    ran = command.run("query", "Orders", "shared", *named, "--catalogue", "published", "--json")
    assert (ran.code, [row["queue_offset"] for row in ran.rows]) == (0, [0])
    assert "more messages may have the key" in ran.err
    assert "of Orders/0 it has the offsets below 1 of 2" in ran.err


def test_a_queue_whose_messages_have_all_expired_waits_for_no_index(
    command: Command, tmp_path: Path
) -> None:
    settings = tmp_path / "tier.toml"
    settings.write_text(
        f"""[tieredstore]
broker_name = "b"
provider = "posix"
path = "{tmp_path / "tier"}"
store_path = "{tmp_path}"
reserve_hours = 0
"""
    )
    command.run("put", "Orders", "--store-path", tmp_path, "--body", "x", "--key", "first")
    assert command.run("offload", "--config", settings, "--seal").code == 0
    assert command.run("expire", "--config", settings).code == 0
    ran = command.run("query", "Orders", "first", "--config", settings)
    assert (ran.code, ran.out) == (0, "")
    assert ran.err == "tieredstore: note: the uploaded index has no such message\n"


Damage = Callable[[Path], None]


def flip(queue: str, kind: str, base: int, position: int) -> Damage:
    def damage(root: Path) -> None:
        path = segment_file(root, queue, kind, base)
        data = bytearray(path.read_bytes())
        data[position] ^= 0xFF
        path.write_bytes(data)

    return damage


def remove(queue: str, kind: str, base: int) -> Damage:
    return lambda root: segment_file(root, queue, kind, base).unlink()


def cut(queue: str, kind: str, base: int, size: int) -> Damage:
    return lambda root: os.truncate(segment_file(root, queue, kind, base), size)


def within(begin: int, end: int) -> Callable[[Row], bool]:
    """Messages of GoldAa/0 whose records reach into these bytes of the log."""
    return lambda row: (
        row["queue_id"] == 0 and row["log_offset"] < end and row["log_offset"] + row["size"] > begin
    )


def numbered(begin: int, end: int) -> Callable[[Row], bool]:
    return lambda row: row["queue_id"] == 0 and begin <= row["queue_offset"] < end


END = 1 << 40


@pytest.mark.parametrize(
    ("damage", "is_lost"),
    [
        pytest.param(flip("GoldAa/0", "COMMIT_LOG", 0, 300), within(300, 301), id="a body"),
        pytest.param(flip("GoldAa/0", "COMMIT_LOG", 0, 493), within(493, 494), id="a size"),
        pytest.param(flip("GoldAa/0", "COMMIT_LOG", 0, 498), within(493, 494), id="a magic"),
        pytest.param(
            flip("GoldAa/0", "CONSUME_QUEUE", 400, 47), numbered(22, 23), id="a unit's place"
        ),
        pytest.param(remove("GoldAa/0", "COMMIT_LOG", 0), within(0, 13167), id="the first log"),
        pytest.param(remove("GoldAa/0", "COMMIT_LOG", 13167), within(13167, 26248), id="a log"),
        pytest.param(cut("GoldAa/0", "COMMIT_LOG", 13167, 5000), within(18167, 26248), id="cut"),
        pytest.param(remove("GoldAa/0", "CONSUME_QUEUE", 400), numbered(20, 40), id="units"),
        pytest.param(cut("GoldAa/0", "COMMIT_LOG", 41521, 2000), within(43521, END), id="the end"),
        pytest.param(remove("GoldAa/0", "COMMIT_LOG", 41521), within(41521, END), id="the last"),
        pytest.param(remove("GoldAa/0", "CONSUME_QUEUE", 1600), numbered(80, 83), id="last units"),
    ],
)
def test_cat_shows_all_that_is_whole(
    command: Command, root: Path, damage: Damage, is_lost: Callable[[Row], bool]
) -> None:
    damage(root)
    before = picture(root)
    rows = in_store_order(java_messages("GoldAa"))
    wanted = [row for row in rows if not is_lost(row)]
    assert len(wanted) < len(rows)
    ran = asked(command, root, "cat", "GoldAa", "--json")
    assert as_java_told(ran.rows) == wanted
    assert (ran.code, ran.err.count("\n")) == (4, 1), ran.err
    assert "restore the segment from a copy" in ran.err
    assert picture(root) == before
    sound = asked(command, root, "cat", "GoldAa", "--queue", 1, "--json")
    assert (sound.code, sound.err) == (0, "")


def test_the_number_of_messages_in_a_missing_segment_is_told(command: Command, root: Path) -> None:
    remove("GoldAa/0", "COMMIT_LOG", 13167)(root)
    lost = len([row for row in java_messages("GoldAa") if within(13167, 26248)(row)])
    ran = asked(command, root, "cat", "GoldAa")
    assert f"not shown: {lost} damaged message" in ran.err


def test_cat_from_a_time_goes_on_where_the_search_meets_damage(
    command: Command, root: Path
) -> None:
    remove("GoldAa/0", "COMMIT_LOG", 13167)(root)
    time = 1795171550000  # in the middle of the missing messages
    wanted = [
        row
        for row in in_store_order(java_messages("GoldAa"))
        if row["store_timestamp"] >= time and not within(13167, 26248)(row)
    ]
    ran = asked(command, root, "cat", "GoldAa", "--from", time, "--json")
    assert as_java_told(ran.rows) == wanted
    assert ran.code == 4


@pytest.mark.parametrize("words", [["topics"], ["queues"], ["segments"]], ids=verb_of)
def test_what_was_committed_and_is_gone_is_told_by_every_verb(
    command: Command, root: Path, words: list[object]
) -> None:
    cut("GoldAa/0", "COMMIT_LOG", 41521, 2000)(root)
    sound = asked(command, TIER, *words, "--json")
    ran = asked(command, root, *words, "--json")
    assert (ran.code, ran.err.count("\n"), len(ran.rows)) == (4, 1, len(sound.rows))
    assert "GoldAa/0: " in ran.err
    assert "gone" in ran.err


class Seen:
    """What the reader reported of a walk."""

    def __init__(self) -> None:
        self.counts: list[int] = []
        self.bytes: list[int] = []
        self.damage: list[tuple[QueueKey, int]] = []

    def add_damage(self, key: QueueKey, count: int, error: SegmentError) -> None:
        self.damage.append((key, count))


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    seen = Seen()
    real = TieredReader.get_message

    def noted(
        reader: TieredReader,
        topic: str,
        queue_id: int,
        offset: int,
        *,
        count_max: int,
        bytes_max: int = 1 << 20,
    ) -> GetResult:
        seen.counts.append(count_max)
        seen.bytes.append(bytes_max)
        return real(reader, topic, queue_id, offset, count_max=count_max, bytes_max=bytes_max)

    monkeypatch.setattr(TieredReader, "get_message", noted)
    return seen


@pytest.fixture
def reader(root: Path) -> Iterator[TieredReader]:
    config = StoreConfig(
        broker_name=BROKER,
        cluster_name="GoldenCluster",
        provider="posix",
        path=str(root / "tiered"),
        metadata_path=str(root / CATALOGUE),
        read_ahead_enabled=False,
    )
    with TieredReader(config, runtime=Runtime.inline()) as reader:
        yield reader


def test_no_page_is_read_before_it_is_needed(reader: TieredReader, seen: Seen) -> None:
    found = walk_tier(reader, reader.queues(), count_max=2, on_damage=seen.add_damage)
    assert len(list(islice(found, 2))) == 2
    assert len(seen.counts) <= len(reader.queues()) + 1
    assert set(seen.counts) == {2}


def test_the_pages_of_all_queues_share_the_memory(
    reader: TieredReader, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read, "_BYTES_HELD_MAX", 9_000)
    monkeypatch.setattr(read, "_PAGE_BYTES_MIN", 100)
    keys = reader.queues()
    found = list(walk_tier(reader, keys, on_damage=seen.add_damage))
    assert len(found) == len(java_messages())
    assert set(seen.bytes) == {9_000 // len(keys)}
    assert len(seen.counts) > 200


def test_what_expires_under_a_walk_is_no_damage(
    reader: TieredReader, root: Path, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read, "_PAGE_COUNT_MAX", 4)
    key = QueueKey("GoldAa", 0)
    found = walk_tier(reader, [key], on_damage=seen.add_damage)
    shown = [next(found).message.queue_offset for _ in range(4)]
    gone = [(SegmentType.CONSUME_QUEUE, 0), (SegmentType.COMMIT_LOG, 0)]
    with JsonMetadataStore.open(root / CATALOGUE) as catalogue:
        for kind, base in gone:
            catalogue.delete_segment(f"{BROKER}/GoldAa/0", kind, base)
    for kind, base in gone:
        segment_file(root, "GoldAa/0", kind.name, base).unlink()
    shown += [stored.message.queue_offset for stored in found]
    left = [row["queue_offset"] for row in java_messages(*key) if row["log_offset"] >= 13_167]
    assert shown == [0, 1, 2, 3, *left]
    assert seen.damage == []


def test_what_is_stored_at_the_same_time_comes_by_queue(reader: TieredReader, seen: Seen) -> None:
    keys = [key for key in reader.queues() if key.topic == "GoldAa"]
    found = walk_tier(reader, keys[::-1], on_damage=seen.add_damage)
    places = [(stored.key.queue_id, stored.message.queue_offset) for stored in found]
    wanted = in_store_order(java_messages("GoldAa"))
    assert places == [(row["queue_id"], row["queue_offset"]) for row in wanted]


PLAIN = "ein größerer Auftrag, ".encode() * 20
BODIES = ((0, PLAIN), (0x0001, zlib.compress(PLAIN)), (0x0301, zlib.compress(b"short")))
DAMAGED = 0x0001, zlib.compress(PLAIN)[:-4]
KINDS = pytest.mark.parametrize("kind", ["tier", "local"])


def cat_of(
    command: Command, folder: Path, kind: str, bodies: tuple[tuple[int, bytes], ...], *words: str
) -> Ran:
    if kind == "local":
        config = LocalConfig(store_path=str(folder), commit_log_file_bytes=1 << 16)
        store = LocalMessageStore(config, Runtime.inline())
        store.load()
        store.start()
        for sys_flag, body in bodies:
            sent = Message(topic="orders", queue_id=0, body=body, sys_flag=sys_flag)
            assert store.put_message(sent).stored
        store.flush()
        store.shutdown()
        sizes = "--commit-log-file-bytes", 1 << 16
        return command.run("local", "cat", folder, "orders", *sizes, *words)
    tier = WrittenTier(config=posix_config(folder, index_enabled=False))
    for sys_flag, body in bodies:
        tier.add("orders", 0, 1, bodies=[body], sys_flag=sys_flag)
    return command.run(
        *("cat", "orders", "--provider", "posix", "--path", tier.config.path),
        *("--store-path", tier.config.store_path, "--cluster", "c", "--broker", "broker-a"),
        *words,
    )


@KINDS
def test_plain_bodies_are_shown_beside_those_that_are_stored(
    command: Command, tmp_path: Path, kind: str
) -> None:
    ran = cat_of(command, tmp_path, kind, BODIES, "--json", "--with-body", "--plain").done()
    assert [base64.b64decode(row["body"]) for row in ran.rows] == [body for _, body in BODIES]
    plain = [base64.b64decode(row["body_plain"]) for row in ran.rows]
    assert plain == [PLAIN, PLAIN, b"short"]
    assert all("body_problem" not in row for row in ran.rows)


@KINDS
def test_people_see_the_plain_body(command: Command, tmp_path: Path, kind: str) -> None:
    ran = cat_of(command, tmp_path, kind, BODIES, "--plain").done()
    _, *lines = ran.out.splitlines()
    for line, body in zip(lines, (PLAIN, PLAIN, b"short"), strict=True):
        assert line.endswith(f"  {body.decode().strip()}")


@KINDS
def test_a_body_that_cannot_be_made_plain_is_told_of_and_hides_no_message(
    command: Command, tmp_path: Path, kind: str
) -> None:
    ran = cat_of(command, tmp_path, kind, (BODIES[1], DAMAGED, BODIES[2]), "--plain", "--json")
    assert ran.code == 4
    assert ran.err == (
        "tieredstore: 1 body could not be made plain, the first of orders/0/1: the compressed"
        " body is damaged (zlib): it ends too early; the messages themselves are sound\n"
    )
    assert [row["body_plain"] is None for row in ran.rows] == [False, True, False]
    assert ran.rows[1]["body_problem"] == "the compressed body is damaged (zlib): it ends too early"
    assert all("body" not in row for row in ran.rows)

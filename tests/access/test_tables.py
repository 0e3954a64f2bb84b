"""Consumer offsets and topics survive a restart, a crash and a lost disk; rounds copy them."""

from __future__ import annotations

import errno
import logging
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.access.tiered_kit import a_config
from tests.every_step import every_step
from tests.providers.object_kit import Bucket
from tieredstore.access.store import TieredMessageStore
from tieredstore.access.tables import (
    COPY_BYTES_MAX,
    RIDE_MS,
    VERSIONS,
    BrokerTables,
    ConsumerOffsets,
    TopicTable,
    copied,
)
from tieredstore.codec.broker_tables import CONSUMER_OFFSETS, TOPICS, TopicConfig
from tieredstore.driver.metadata import MetadataStore
from tieredstore.driver.runtime import ManualClock, Runtime
from tieredstore.metadata.json_store import JsonMetadataStore
from tieredstore.metadata.memory_store import MemoryMetadataStore
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import (
    BackendRefusedError,
    InvalidArgumentError,
    InvalidConfigError,
    MetadataError,
    StoreClosedError,
)
from tieredstore.model.messages import Message
from tieredstore.model.values import QueueKey
from tieredstore.testing.disk import ForgetfulDisk
from tieredstore.testing.faults import Fault, Faults
from tieredstore.testing.message_store_contract import ListMessageStore
from tieredstore.testing.samples import STORE_TIMESTAMP, TOPIC, a_message

GROUP = "group-a"
QUEUE = QueueKey(TOPIC, 0)


def memory() -> MemoryMetadataStore:
    return MemoryMetadataStore(place="memory", clock_ms=lambda: 0)


def opened(
    folder: Path, metadata: MetadataStore | None = None, runtime: Runtime | None = None
) -> BrokerTables:
    runtime = runtime or Runtime.inline()
    tables = BrokerTables(a_config(folder), metadata or memory(), runtime)
    tables.load()
    return tables


def file_of(folder: Path, name: str = "consumerOffset.json") -> Path:
    return folder / "store" / "config" / name


# The tables


def test_offsets_are_what_was_last_committed(tmp_path: Path) -> None:
    offsets = opened(tmp_path).consumer_offsets
    assert offsets.get(GROUP, TOPIC, 0) is None
    offsets.commit(GROUP, TOPIC, 0, 5)
    offsets.commit(GROUP, TOPIC, 0, 3)  # a consumer may go back
    offsets.commit(GROUP, TOPIC, 1, 7)
    offsets.commit("group-b", "Other", 0, 1)
    assert offsets.get(GROUP, TOPIC, 0) == 3
    assert offsets.of_group(GROUP) == {QUEUE: 3, QueueKey(TOPIC, 1): 7}
    assert offsets.groups() == [GROUP, "group-b"]
    assert offsets.groups("Other") == ["group-b"]
    offsets.reset(GROUP, {QUEUE: 0, QueueKey(TOPIC, 2): 4})
    assert offsets.of_group(GROUP) == {QUEUE: 0, QueueKey(TOPIC, 1): 7, QueueKey(TOPIC, 2): 4}
    offsets.forget_group(GROUP)
    assert offsets.groups() == ["group-b"]
    offsets.forget_topics(["Other"])
    assert offsets.groups() == []


@pytest.mark.parametrize(
    ("group", "topic", "queue_id", "offset"),
    [
        ("", TOPIC, 0, 0),
        ("a@b", TOPIC, 0, 0),
        ("x" * 256, TOPIC, 0, 0),
        ("\ud800", TOPIC, 0, 0),
        (7, TOPIC, 0, 0),
        (GROUP, "", 0, 0),
        (GROUP, "a@b", 0, 0),
        (GROUP, "a/b", 0, 0),
        (GROUP, TOPIC, -1, 0),
        (GROUP, TOPIC, True, 0),
        (GROUP, TOPIC, 1 << 31, 0),
        (GROUP, TOPIC, 0, -1),
        (GROUP, TOPIC, 0, 1 << 63),
        (GROUP, TOPIC, 0, 1.5),
        (GROUP, TOPIC, 0, None),
    ],
)
def test_what_is_no_place_is_refused_and_changes_nothing(
    tmp_path: Path, group: Any, topic: Any, queue_id: Any, offset: Any
) -> None:
    offsets = opened(tmp_path).consumer_offsets
    with pytest.raises(InvalidArgumentError):
        offsets.commit(group, topic, queue_id, offset)
    with pytest.raises(InvalidArgumentError):
        offsets.reset(group, {QUEUE: 1, QueueKey(topic, queue_id): offset})
    assert offsets.groups() == []


def test_what_is_no_topics_settings_is_refused(tmp_path: Path) -> None:
    topics = opened(tmp_path).topic_table
    wrong: Any = "Orders"
    with pytest.raises(InvalidArgumentError, match="want a TopicConfig, not 'Orders'"):
        topics.put(wrong)
    assert topics.all() == []


def test_there_are_only_so_many_offsets_and_topics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tieredstore.access.tables.OFFSETS_MAX", 100)
    monkeypatch.setattr("tieredstore.access.tables.TOPICS_MAX", 1)
    offsets, topics = opened(tmp_path).consumer_offsets, opened(tmp_path).topic_table
    topics.put(TopicConfig(name=TOPIC))
    topics.put(TopicConfig(name=TOPIC, perm=2))
    with pytest.raises(InvalidArgumentError, match="1 topics already"):
        topics.put(TopicConfig(name="Other"))
    offsets.reset(GROUP, {QueueKey(TOPIC, number): 0 for number in range(100)})
    with pytest.raises(InvalidArgumentError, match="already"):
        offsets.commit("group-b", TOPIC, 0, 1)
    offsets.commit(GROUP, TOPIC, 0, 1)  # an existing one may move
    offsets.forget_topics([TOPIC])
    offsets.commit("group-b", TOPIC, 0, 1)
    assert offsets.groups() == ["group-b"]


def test_topics_are_put_replaced_and_deleted(tmp_path: Path) -> None:
    topics = opened(tmp_path).topic_table
    assert topics.get(TOPIC) is None
    topics.put(TopicConfig(name=TOPIC))
    topics.put(TopicConfig(name=TOPIC, read_queue_count=4, attributes={"message.type": "FIFO"}))
    topics.put(TopicConfig(name="Other"))
    found = topics.get(TOPIC)
    assert found is not None
    assert found.read_queue_count == 4
    assert [topic.name for topic in topics.all()] == [TOPIC, "Other"]
    topics.delete(TOPIC, "Nobody")
    assert [topic.name for topic in topics.all()] == ["Other"]


@pytest.mark.parametrize(
    "others",
    [{"x": float("nan")}, {"x": (1, 2)}, {"x": {1: 2}}, {"x": "\ud800"}, {"x": "y" * 70_000}],
)
def test_a_topic_that_could_not_be_read_back_is_refused(tmp_path: Path, others: Any) -> None:
    tables = opened(tmp_path)
    with pytest.raises(InvalidArgumentError):
        tables.topic_table.put(TopicConfig(name=TOPIC, others=others))
    assert tables.stage()


def test_what_becomes_of_a_mapping_that_was_put_changes_no_topic(tmp_path: Path) -> None:
    tables = opened(tmp_path)
    attributes = {"+message.type": "NORMAL"}
    others: dict[str, Any] = {"notes": ["first"]}
    topic = TopicConfig(name=TOPIC, attributes=attributes, others=others)
    for text in ("NORMAL", "FIFO"):
        attributes["+message.type"] = text
        tables.topic_table.put(topic)
        assert tables.keep()
        others["notes"].append("and more")
        attributes["+message.type"] = "of nobody's concern"
        kept = opened(tmp_path).topic_table.get(TOPIC)
        assert kept == tables.topic_table.get(TOPIC)
        assert kept is not None
        assert kept.attributes == {"+message.type": text}
    others["notes"] = [object()]
    tables.topic_table.put(TopicConfig(name="Other"))
    assert tables.keep()


def test_many_threads_commit_while_the_tables_are_kept(tmp_path: Path) -> None:
    metadata = memory()
    tables = opened(tmp_path, metadata)

    def consume(number: int) -> None:
        for offset in range(500):
            tables.consumer_offsets.commit(f"group-{number}", TOPIC, offset % 7, offset)

    threads = [threading.Thread(target=consume, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert tables.stage()
    tables.close()
    assert tables.stage()
    expected = {f"{TOPIC}@group-{number}": {at % 7: at for at in range(500)} for number in range(4)}
    assert CONSUMER_OFFSETS.decode(file_of(tmp_path).read_bytes()).rows == expected
    found = copied(CONSUMER_OFFSETS, metadata)
    assert found is not None
    assert found.rows == expected


# On disk


def test_nothing_is_written_where_nothing_was_changed(tmp_path: Path) -> None:
    metadata = memory()
    tables = opened(tmp_path, metadata)
    tables.step()
    assert tables.keep()
    tables.close()
    assert not (tmp_path / "store").exists()
    assert not metadata.notes(VERSIONS)


def test_a_restart_has_what_was_kept_and_the_version_grows_with_each_write(tmp_path: Path) -> None:
    tables = opened(tmp_path)
    tables.consumer_offsets.commit(GROUP, TOPIC, 0, 5)
    tables.topic_table.put(TopicConfig(name=TOPIC))
    tables.step()
    tables.step()
    assert tables.consumer_offsets.version.counter == 1
    tables.consumer_offsets.commit(GROUP, TOPIC, 0, 5)  # changes nothing
    tables.step()
    assert tables.consumer_offsets.version.counter == 1
    tables.consumer_offsets.commit(GROUP, TOPIC, 0, 6)
    tables.close()
    again = opened(tmp_path)
    assert again.consumer_offsets.get(GROUP, TOPIC, 0) == 6
    assert again.consumer_offsets.version.counter == 2
    assert again.topic_table.get(TOPIC) == TopicConfig(name=TOPIC)
    backup = CONSUMER_OFFSETS.decode(file_of(tmp_path, "consumerOffset.json.bak").read_bytes())
    assert backup.rows == {f"{TOPIC}@{GROUP}": {0: 5}}


def test_a_closed_table_refuses(tmp_path: Path) -> None:
    tables = opened(tmp_path)
    tables.close()
    with pytest.raises(StoreClosedError):
        tables.consumer_offsets.commit(GROUP, TOPIC, 0, 1)
    with pytest.raises(StoreClosedError):
        tables.topic_table.all()


def test_a_damaged_file_falls_back_to_the_one_before_which_stays(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tables = opened(tmp_path)
    for offset in (1, 2):
        tables.consumer_offsets.commit(GROUP, TOPIC, 0, offset)
        tables.step()
    file_of(tmp_path).write_bytes(b'{"offsetTable":{"T')
    again = opened(tmp_path)
    assert again.consumer_offsets.get(GROUP, TOPIC, 0) == 1
    assert "cannot be used" in caplog.text
    again.step()  # replaces the damaged file, which never becomes the backup
    for name in ("consumerOffset.json", "consumerOffset.json.bak"):
        found = CONSUMER_OFFSETS.decode(file_of(tmp_path, name).read_bytes())
        assert found.rows == {f"{TOPIC}@{GROUP}": {0: 1}}


def test_a_missing_file_falls_back_to_the_one_before(tmp_path: Path) -> None:
    tables = opened(tmp_path)
    for offset in (1, 2):
        tables.consumer_offsets.commit(GROUP, TOPIC, 0, offset)
        tables.step()
    for lose in (lambda: file_of(tmp_path).unlink(), lambda: file_of(tmp_path).write_bytes(b"")):
        lose()
        assert opened(tmp_path).consumer_offsets.get(GROUP, TOPIC, 0) == 1
        file_of(tmp_path).touch()


def test_an_empty_file_never_becomes_the_backup(tmp_path: Path) -> None:
    """The disk is still full: the backup is the last copy until the new file is written."""
    tables = opened(tmp_path)
    for offset in (1, 2):
        tables.consumer_offsets.commit(GROUP, TOPIC, 0, offset)
        tables.step()
    file_of(tmp_path).write_bytes(b"")
    again = opened(tmp_path)
    again.consumer_offsets.commit(GROUP, TOPIC, 0, 3)
    again.step()
    backup = CONSUMER_OFFSETS.decode(file_of(tmp_path, "consumerOffset.json.bak").read_bytes())
    assert backup.rows == {f"{TOPIC}@{GROUP}": {0: 1}}


def test_damage_without_any_copy_is_an_error_that_names_the_file_and_changes_nothing(
    tmp_path: Path,
) -> None:
    file = file_of(tmp_path)
    file.parent.mkdir(parents=True)
    file.write_bytes(b"{broken")
    with pytest.raises(InvalidConfigError, match="consumerOffset.json: cannot be used"):
        opened(tmp_path)
    assert file.read_bytes() == b"{broken"
    assert [each.name for each in file.parent.iterdir()] == [file.name]


def test_damage_is_mended_from_the_tier(tmp_path: Path) -> None:
    metadata = memory()
    tables = opened(tmp_path, metadata)
    tables.consumer_offsets.commit(GROUP, TOPIC, 0, 9)
    tables.stage()
    file_of(tmp_path).write_bytes(b"{broken")
    again = opened(tmp_path, metadata)
    assert again.consumer_offsets.get(GROUP, TOPIC, 0) == 9
    again.step()
    assert opened(tmp_path).consumer_offsets.get(GROUP, TOPIC, 0) == 9


def test_a_write_that_fails_is_told_and_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = opened(tmp_path)
    tables.consumer_offsets.commit(GROUP, TOPIC, 0, 1)
    with ForgetfulDisk(tmp_path, stop_at=4, error=True) as disk:
        tables.step()
    assert disk.failed
    assert not file_of(tmp_path).exists()
    assert (tables.problem or "").startswith("write: ")
    tables.step()
    assert not tables.problem
    assert opened(tmp_path).consumer_offsets.get(GROUP, TOPIC, 0) == 1


def test_a_file_that_could_not_be_read_back_is_never_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tieredstore.access.tables.FILE_BYTES_MAX", 1_000)
    groups = [f"{number:0100d}" for number in range(20)]
    tables = opened(tmp_path)
    tables.consumer_offsets.commit(GROUP, TOPIC, 0, 7)
    assert tables.keep()
    for group in groups:
        tables.consumer_offsets.commit(group, TOPIC, 0, 1)
    tables.topic_table.put(TopicConfig(name=TOPIC))
    assert not tables.keep()
    assert "File too large" in (tables.problem or "")
    again = opened(tmp_path)
    assert again.consumer_offsets.get(GROUP, TOPIC, 0) == 7
    assert again.topic_table.get(TOPIC) is not None
    for group in groups:
        tables.consumer_offsets.forget_group(group)
    assert tables.keep()
    assert tables.problem is None


def test_at_every_step_of_a_write_a_crash_leaves_the_old_table_or_the_new_one(
    tmp_path: Path,
) -> None:
    numbers = iter(range(1_000_000))

    def check(folder: Path, *, least: int) -> None:
        found = opened(folder).consumer_offsets.get(GROUP, TOPIC, 0)
        assert found is not None
        assert least <= found <= 3

    def life(step: int) -> tuple[ForgetfulDisk, Path]:
        folder = tmp_path / str(next(numbers))
        tables = opened(folder)
        for offset in (1, 2):
            tables.consumer_offsets.commit(GROUP, TOPIC, 0, offset)
            tables.step()
        tables.consumer_offsets.commit(GROUP, TOPIC, 0, 3)
        with ForgetfulDisk(folder, stop_at=step + 1) as disk:
            tables.step()
        return disk, folder

    def look(left: tuple[ForgetfulDisk, Path], step: int) -> bool:
        disk, folder = left
        least = 2 if disk.died else 3
        check(disk.written(folder.with_name(f"{folder.name}-written")), least=least)
        check(disk.synced(folder.with_name(f"{folder.name}-synced")), least=least)
        for seed in range(5):
            place = folder.with_name(f"{folder.name}-cut-{seed}")
            check(disk.cut(place, random.Random(seed)), least=least)
        return disk.died

    assert every_step(life, look) >= 10


COMMITTER = """
import sys
from itertools import count
from tieredstore import StoreConfig, TieredMessageStore
from tieredstore.driver.runtime import Runtime
from tieredstore.testing.message_store_contract import ListMessageStore

config = StoreConfig(
    store_path=sys.argv[1], index_enabled=False, tables_interval_ms=1, tables_copy_interval_ms=1
)
runtime = Runtime.threads()
with TieredMessageStore(ListMessageStore(runtime), config, runtime=runtime) as store:
    for offset in count(1 + (store.consumer_offsets.get("group-0", "T", 0) or 0)):
        for group in range(3):
            store.consumer_offsets.commit(f"group-{group}", "T", 0, offset)
        if not offset % 50:
            store._loaded().tables.keep()
            print(offset, flush=True)
"""


def test_killed_while_it_commits_it_has_all_that_was_kept(tmp_path: Path) -> None:
    """After each kill the file is whole, and the copy in the catalogue is not newer."""
    kept, copy = 0, None
    for lines in (1, 7, 30):
        command = [sys.executable, "-c", COMMITTER, str(tmp_path / "store")]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as committer:
            assert committer.stdout is not None
            for _ in range(lines):
                kept = int(committer.stdout.readline())
            committer.kill()
        with JsonMetadataStore.open(a_config(tmp_path).catalogue_path) as metadata:
            file = CONSUMER_OFFSETS.decode(file_of(tmp_path).read_bytes())
            copy = copied(CONSUMER_OFFSETS, metadata)
            if copy is not None:  # None if it was killed before the first copy
                assert copy.version <= file.version
            found = opened(tmp_path, metadata).consumer_offsets
            for group in range(3):
                offset = found.get(f"group-{group}", "T", 0)
                assert offset is not None
                assert offset >= kept
    assert copy is not None


# In the tier


@pytest.fixture(params=["memory", "json"])
def catalogue(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MetadataStore]:
    opening = JsonMetadataStore.open(tmp_path / "tieredStoreMetadata.json")
    with memory() if request.param == "memory" else opening as store:
        yield store


def test_a_new_machine_has_what_was_copied(tmp_path: Path, catalogue: MetadataStore) -> None:
    old = opened(tmp_path / "old", catalogue)
    topic = TopicConfig(name=TOPIC, attributes={"message.type": "DELAY"}, others={"later": [1]})
    old.consumer_offsets.reset(GROUP, {QUEUE: 5, QueueKey(TOPIC, 1): 6})
    old.consumer_offsets.commit("gone", TOPIC, 0, 1)
    old.topic_table.put(topic)
    old.stage()
    old.consumer_offsets.forget_group("gone")
    old.stage()
    new = opened(tmp_path / "new", catalogue)
    assert new.consumer_offsets.of_group(GROUP) == {QUEUE: 5, QueueKey(TOPIC, 1): 6}
    assert new.consumer_offsets.groups() == [GROUP]
    assert new.topic_table.all() == [topic]
    new.step()
    assert file_of(tmp_path / "new").exists()
    assert new.consumer_offsets.version > old.consumer_offsets.version


def test_the_newer_of_file_and_copy_is_taken(tmp_path: Path) -> None:
    metadata = memory()
    tables = opened(tmp_path, metadata)
    tables.consumer_offsets.commit(GROUP, TOPIC, 0, 1)
    tables.step()
    image = file_of(tmp_path).read_bytes()
    tables.consumer_offsets.commit(GROUP, TOPIC, 0, 2)
    tables.stage()
    tables.consumer_offsets.commit(GROUP, TOPIC, 0, 3)
    tables.keep()  # without a copy
    assert opened(tmp_path, metadata).consumer_offsets.get(GROUP, TOPIC, 0) == 3
    file_of(tmp_path).write_bytes(image)  # an older image of the disk
    assert opened(tmp_path, metadata).consumer_offsets.get(GROUP, TOPIC, 0) == 2


def test_a_file_that_an_operator_has_edited_counts_and_the_log_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    metadata = memory()
    tables = opened(tmp_path, metadata)
    tables.consumer_offsets.commit(GROUP, TOPIC, 0, 777)
    tables.stage()
    tables.close()
    text = file_of(tmp_path).read_text(encoding="utf-8")
    assert "0:777" in text
    file_of(tmp_path).write_text(text.replace("0:777", "0:42"), encoding="utf-8")
    again = opened(tmp_path, metadata)
    assert again.consumer_offsets.get(GROUP, TOPIC, 0) == 42
    assert "1 rows differ from the copy of this version" in caplog.text
    again.stage()
    caplog.clear()
    opened(tmp_path, metadata)
    assert not caplog.text
    found = copied(CONSUMER_OFFSETS, metadata)
    assert found is not None
    assert found.rows == {f"{TOPIC}@{GROUP}": {0: 42}}


def test_only_rows_that_have_changed_are_copied(tmp_path: Path) -> None:
    metadata = Counted()
    tables = opened(tmp_path, metadata)
    for number in range(50):
        tables.consumer_offsets.commit(f"group-{number}", TOPIC, 0, 1)
    tables.stage()
    assert metadata.count == 50 + 1  # the rows and the version
    tables.consumer_offsets.commit("group-7", TOPIC, 0, 2)
    tables.stage()
    assert metadata.count == 51 + 2
    tables.stage()
    opened(tmp_path, metadata).stage()
    assert metadata.count == 53


class Counted(MemoryMetadataStore):
    """Counts changes, and may refuse them."""

    def __init__(self) -> None:
        super().__init__(place="memory", clock_ms=lambda: 0)
        self.count = 0
        self.failure: Exception | None = None

    def apply(self, changes: Any) -> None:
        found = list(changes)
        if self.failure is not None:
            raise self.failure
        self.count += len(found)
        super().apply(found)


def test_a_copy_that_fails_is_told_and_done_again(tmp_path: Path) -> None:
    metadata = Counted()
    tables = opened(tmp_path, metadata)
    tables.consumer_offsets.commit(GROUP, TOPIC, 0, 1)
    metadata.failure = MetadataError("catalogue", "the disk is full")
    assert not tables.stage()
    assert "the disk is full" in (tables.problem or "")
    assert tables.keep()
    assert "the disk is full" in (tables.problem or "")  # the copy has still failed
    metadata.failure = None
    assert tables.stage()
    assert not tables.problem
    assert copied(CONSUMER_OFFSETS, metadata) is not None


def test_a_large_table_is_copied_piece_by_piece(tmp_path: Path) -> None:
    runtime, metadata = Runtime.inline(), memory()
    tables = opened(tmp_path, metadata, runtime)
    for number in range(3):
        offsets = {QueueKey(f"{TOPIC}-{number}", at): 1 << 60 for at in range(30_000)}
        tables.consumer_offsets.reset(GROUP, offsets)
    sizes = []
    for _ in range(4):
        tables.step()
        assert isinstance(runtime.clock, ManualClock)
        runtime.clock.advance(30_000)
        sizes.append((len(metadata.notes("consumerOffset.json")), len(metadata.notes(VERSIONS))))
    assert 30_000 * 27 < COPY_BYTES_MAX < 2 * 30_000 * 27
    assert sizes == [(2, 0), (3, 1), (3, 1), (3, 1)]  # the version comes with the last piece


@pytest.mark.parametrize(
    ("kind", "key", "value"),
    [
        ("consumerOffset.json", "T@g", {"0": "x"}),
        ("consumerOffset.json", "T@g", 7),
        (VERSIONS, "consumerOffset.json", [1]),
        (VERSIONS, "consumerOffset.json", {"version": {"counter": -1}}),
    ],
)
def test_a_copy_that_is_none_is_refused(tmp_path: Path, kind: str, key: str, value: Any) -> None:
    metadata = memory()
    metadata.put_note(kind, key, value)
    with pytest.raises(MetadataError, match=r"its copy of consumerOffset\.json"):
        opened(tmp_path, metadata)
    tables = opened(tmp_path)
    tables.consumer_offsets.commit(GROUP, TOPIC, 0, 5)
    tables.close()
    assert opened(tmp_path, metadata).stage()  # replaces the copy from the sound file
    found = copied(CONSUMER_OFFSETS, metadata)
    assert found is not None
    assert found.rows == {f"{TOPIC}@{GROUP}": {0: 5}}
    assert found.version == tables.consumer_offsets.version


# The tables of a store


class Machine:
    """A broker with its own disk over a bucket, which outlives it."""

    made: ClassVar[list[Machine]] = []

    def __init__(
        self, disk: Path, bucket: Bucket, *, holds: Sequence[Message] = (), **settings: Any
    ) -> None:
        self.runtime = Runtime.inline(now_ms=STORE_TIMESTAMP)
        self.faults = Faults()
        self.process = bucket.process(self.faults, runtime=self.runtime)
        self.local = ListMessageStore(self.runtime)
        if holds:
            self.local.load()
            self.local.start()
            self.local.put_messages(holds)
        self.config = a_config(disk, index_enabled=False, **settings)
        self.store = TieredMessageStore(
            self.local, self.config, runtime=self.runtime, provider=self.process.provider
        )
        self.made.append(self)
        self.store.load()
        self.store.start()

    @property
    def tables(self) -> BrokerTables:
        tables = self.store._loaded().tables
        assert tables is not None
        return tables

    @property
    def offsets(self) -> ConsumerOffsets:
        return self.store.consumer_offsets

    def put(self, count: int) -> None:
        for number in range(count):
            self.store.put_message(a_message(number, queue_id=0))

    def pass_ms(self, ms: float) -> None:
        clock = self.runtime.clock
        assert isinstance(clock, ManualClock)
        clock.advance(ms)

    def requests(self, call: Callable[[], object]) -> dict[str, int]:
        self.process.forget_requests()
        call()
        return self.process.requests

    def upload(self) -> None:
        assert self.store._loaded().dispatcher.dispatch_once(force=True)


@pytest.fixture
def bucket() -> Iterator[Bucket]:
    yield Bucket()
    while Machine.made:
        machine = Machine.made.pop()
        machine.faults.always = None
        machine.store.shutdown(drain=False)


@pytest.fixture
def machine(tmp_path: Path, bucket: Bucket) -> Machine:
    return Machine(tmp_path / "first", bucket)


def test_a_round_takes_the_copy_along_and_makes_no_request_more(
    machine: Machine, tmp_path: Path, bucket: Bucket
) -> None:
    machine.put(1)
    machine.upload()
    machine.put(1)
    bare = machine.requests(machine.upload)
    machine.offsets.commit(GROUP, TOPIC, 0, 2)
    assert machine.requests(machine.tables.step) == {}
    machine.put(1)
    assert machine.requests(machine.upload) == bare
    # What the round took along outlives the machine, which is never shut down.
    machine.offsets.commit(GROUP, TOPIC, 0, 3)
    machine.tables.step()
    found = Machine(tmp_path / "second", bucket)
    assert found.offsets.get(GROUP, TOPIC, 0) == 2


def test_the_copy_outlives_the_entries_that_brought_it(
    machine: Machine, tmp_path: Path, bucket: Bucket
) -> None:
    machine.put(1)
    machine.offsets.commit(GROUP, TOPIC, 0, 1)
    machine.tables.step()
    machine.upload()
    first = {key for key in bucket.objects.held_keys() if "/log/" in key}
    assert first
    while first & set(bucket.objects.held_keys()):  # until states replace them
        machine.put(1)
        machine.upload()
        while machine.process.provider.tend("broker-a"):
            pass
        machine.pass_ms(600_000)
    assert Machine(tmp_path / "second", bucket).offsets.get(GROUP, TOPIC, 0) == 1


def test_what_no_round_takes_along_is_written_after_minutes_at_the_price_of_one_entry(
    machine: Machine, tmp_path: Path, bucket: Bucket
) -> None:
    machine.put(5)
    machine.upload()
    entry = {"head": 1, "put": 1}
    minutes = RIDE_MS // 60_000
    seen: list[dict[str, int]] = []

    def pass_minutes(count: int, commit: Callable[[int], None] = lambda _: None) -> None:
        for step in range(count * 12):
            commit(step)
            seen.append(machine.requests(machine.tables.step))
            machine.pass_ms(5_000)

    pass_minutes(3 * minutes, lambda step: machine.offsets.commit(GROUP, TOPIC, 0, step % 5))
    assert [one for one in seen if one] == [entry, entry]
    pass_minutes(2 * minutes)
    assert [one for one in seen if one] == [entry] * 4
    pass_minutes(5 * minutes)  # without more changes
    assert [one for one in seen if one] == [entry] * 4
    assert Machine(tmp_path / "second", bucket).offsets.get(GROUP, TOPIC, 0) == 4


def test_while_the_bucket_is_away_what_waits_stays_bounded_and_it_comes_later(
    machine: Machine, tmp_path: Path, bucket: Bucket
) -> None:
    machine.put(50)
    machine.upload()
    machine.faults.always = Fault.BEFORE
    log = machine.process.provider._log_of("broker-a")
    for offset in range(50):
        machine.offsets.commit(GROUP, TOPIC, 0, offset)
        machine.tables.step()
        machine.pass_ms(60_000)
        assert len(log.staged) <= 2
    assert not machine.store.health().ok
    assert machine.store.health().tables_error is not None
    machine.faults.always = None
    assert machine.store.flush()
    assert machine.store.health().tables_error is None
    assert Machine(tmp_path / "second", bucket).offsets.get(GROUP, TOPIC, 0) == 49


@pytest.mark.parametrize("end", [TieredMessageStore.flush, TieredMessageStore.shutdown])
def test_a_flush_and_an_end_leave_all_in_both_places(
    machine: Machine, tmp_path: Path, bucket: Bucket, end: Callable[[TieredMessageStore], object]
) -> None:
    machine.put(9)
    machine.offsets.commit(GROUP, TOPIC, 0, 7)
    machine.store.topic_table.put(TopicConfig(name=TOPIC, read_queue_count=3))
    offsets = machine.offsets
    end(machine.store)
    offsets_there = CONSUMER_OFFSETS.decode(file_of(tmp_path / "first").read_bytes())
    assert offsets_there.rows == {f"{TOPIC}@{GROUP}": {0: 7}}
    assert offsets_there.version == offsets.version
    found = Machine(tmp_path / "second", bucket)
    assert found.offsets.get(GROUP, TOPIC, 0) == 7
    assert found.store.topic_table.all() == [TopicConfig(name=TOPIC, read_queue_count=3)]
    found.tables.keep()
    topics = TOPICS.decode(file_of(tmp_path / "second", "topics.json").read_bytes())
    assert list(topics.rows) == [TOPIC]


def test_an_end_writes_the_file_though_the_bucket_is_away(machine: Machine, tmp_path: Path) -> None:
    machine.put(9)
    machine.offsets.commit(GROUP, TOPIC, 0, 7)
    machine.faults.always = Fault.BEFORE
    machine.store.shutdown()
    rows = CONSUMER_OFFSETS.decode(file_of(tmp_path / "first").read_bytes()).rows
    assert rows == {f"{TOPIC}@{GROUP}": {0: 7}}


def test_groups_that_were_beyond_what_is_left_go_back_to_the_end(
    machine: Machine, tmp_path: Path, bucket: Bucket, caplog: pytest.LogCaptureFixture
) -> None:
    machine.put(9)
    machine.upload()
    machine.put(5)
    machine.offsets.commit(GROUP, TOPIC, 0, 12)
    machine.offsets.commit("group-b", TOPIC, 0, 8)
    machine.offsets.commit(GROUP, "Elsewhere", 0, 3)  # a queue that no store has
    machine.tables.stage()
    machine.tables.settle()
    with caplog.at_level(logging.WARNING):
        found = Machine(tmp_path / "second", bucket)
    assert found.store.max_offset(TOPIC, 0) == 9
    assert found.offsets.get(GROUP, TOPIC, 0) == 9
    assert found.offsets.get("group-b", TOPIC, 0) == 8
    assert found.offsets.get(GROUP, "Elsewhere", 0) == 0
    assert f"{TOPIC}/0 of {GROUP}: 12 to 9" in caplog.text
    # On disk before any put: after a crash, the group would otherwise skip messages put meanwhile.
    rows = CONSUMER_OFFSETS.decode(file_of(tmp_path / "second").read_bytes()).rows
    assert rows[f"{TOPIC}@{GROUP}"] == {0: 9}


def refuse_writes(path: Path, _: object) -> None:
    raise OSError(errno.ENOSPC, "no space left on device", str(path))


def test_a_store_does_not_open_if_it_cannot_write_down_that_groups_go_back(
    machine: Machine, tmp_path: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise, after a kill, a group would skip what was put meanwhile."""
    machine.put(9)
    machine.upload()
    machine.offsets.commit(GROUP, TOPIC, 0, 12)
    machine.tables.stage()
    machine.tables.settle()
    with monkeypatch.context() as patched:
        patched.setattr("tieredstore.access.tables.write_atomically", refuse_writes)
        with pytest.raises(BackendRefusedError, match="no space left"):
            Machine(tmp_path / "second", bucket)
    found = Machine(tmp_path / "second", bucket)
    assert found.offsets.get(GROUP, TOPIC, 0) == 9


def test_groups_stay_where_they_are_in_a_queue_whose_end_is_not_decided(
    machine: Machine, tmp_path: Path, bucket: Bucket
) -> None:
    machine.put(9)
    machine.offsets.commit(GROUP, TOPIC, 0, 8)
    assert machine.store.flush()
    others = [a_message(number + 100, queue_id=0) for number in range(3)]
    forked = Machine(tmp_path / "second", bucket, holds=others)
    assert list(forked.store.agreement.refused) == [QUEUE]
    assert forked.store.max_offset(TOPIC, 0) == 3
    assert forked.offsets.get(GROUP, TOPIC, 0) == 8


def test_a_deleted_topic_is_forgotten_everywhere_at_once(
    machine: Machine, tmp_path: Path, bucket: Bucket
) -> None:
    machine.put(3)
    for topic in (TOPIC, "Other"):
        machine.offsets.commit(GROUP, topic, 0, 2)
        machine.store.topic_table.put(TopicConfig(name=topic))
    assert machine.store.flush()
    machine.store.delete_topics([TOPIC])
    assert machine.offsets.queues() == {QueueKey("Other", 0)}
    rows = CONSUMER_OFFSETS.decode(file_of(tmp_path / "first").read_bytes()).rows
    assert list(rows) == [f"Other@{GROUP}"]
    machine.tables.settle()
    found = Machine(tmp_path / "second", bucket)
    assert found.offsets.queues() == {QueueKey("Other", 0)}
    assert [topic.name for topic in found.store.topic_table.all()] == ["Other"]


@pytest.mark.parametrize("is_uploaded", [False, True])
def test_an_unused_topic_is_forgotten_whether_or_not_the_tier_has_it(
    machine: Machine, is_uploaded: bool
) -> None:
    machine.put(3)
    machine.offsets.commit(GROUP, TOPIC, 0, 2)
    machine.store.topic_table.put(TopicConfig(name=TOPIC))
    if is_uploaded:
        assert machine.store.flush()
    assert machine.store.clean_unused_topics([]) == 1
    machine.put(3)
    assert machine.offsets.get(GROUP, TOPIC, 0) is None  # the first of these is not passed over
    assert machine.store.topic_table.all() == []
    assert machine.store.clean_unused_topics([TOPIC]) == 0


def test_a_deletion_says_that_it_could_not_be_written_down_and_can_be_repeated(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.put(3)
    machine.offsets.commit(GROUP, TOPIC, 0, 2)
    assert machine.store.flush()
    with monkeypatch.context() as patched:
        patched.setattr("tieredstore.access.tables.write_atomically", refuse_writes)
        with pytest.raises(BackendRefusedError, match="no space left"):
            machine.store.delete_topics([TOPIC])
    assert "no space left" in (machine.tables.problem or "")
    machine.store.delete_topics([TOPIC])
    assert machine.tables.problem is None
    rows = CONSUMER_OFFSETS.decode(file_of(tmp_path / "first").read_bytes()).rows
    assert not rows


def test_a_destroyed_store_leaves_no_table(
    machine: Machine, tmp_path: Path, bucket: Bucket
) -> None:
    machine.offsets.commit(GROUP, TOPIC, 0, 2)
    machine.store.topic_table.put(TopicConfig(name=TOPIC))
    machine.store.shutdown()
    machine.store.destroy()
    assert not file_of(tmp_path / "first").exists()
    found = Machine(tmp_path / "second", bucket)
    assert found.offsets.groups() == []
    assert found.store.topic_table.all() == []


def test_a_store_that_keeps_none_says_so(tmp_path: Path, bucket: Bucket) -> None:
    """A broker that keeps its own tables uses the same files: they must not be touched."""
    file = file_of(tmp_path)
    file.parent.mkdir(parents=True)
    file.write_bytes(b"{broken")
    machine = Machine(tmp_path, bucket, tables_enabled=False)
    with pytest.raises(InvalidConfigError, match="tables_enabled"):
        _ = machine.store.consumer_offsets
    with pytest.raises(InvalidConfigError, match="tables_enabled"):
        _ = machine.store.topic_table
    machine.put(1)
    assert machine.store.flush()
    machine.store.delete_topics([TOPIC])
    machine.store.shutdown()
    machine.store.destroy()
    assert file.read_bytes() == b"{broken"


def test_a_service_keeps_the_tables_of_a_store_with_threads(tmp_path: Path) -> None:
    config = replace(a_config(tmp_path, index_enabled=False), tables_interval_ms=1)
    kept = threading.Event()
    with (
        Runtime.threads() as runtime,
        TieredMessageStore(ListMessageStore(runtime), config, runtime=runtime) as store,
    ):
        store.consumer_offsets.commit(GROUP, TOPIC, 0, 4)
        for _ in range(10_000):
            if store.consumer_offsets.version.counter:
                break
            kept.wait(0.001)
        assert store.consumer_offsets.version.counter == 1
        assert isinstance(store.topic_table, TopicTable)
    assert opened(tmp_path).consumer_offsets.get(GROUP, TOPIC, 0) == 4


def test_settings_of_the_tables_are_rocketmqs() -> None:
    assert StoreConfig().tables_interval_ms == 5_000

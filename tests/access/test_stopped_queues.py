"""Queues stop alone, with a reason, and nothing is overwritten."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.access.dispatch_kit import KEY, RecordingIndex, Tier, a_tier
from tests.local.store_audit import crash, opened
from tieredstore.access.queue_upload import ask_to_resume, stop_queue
from tieredstore.access.reader import TieredReader
from tieredstore.access.rebuild import rebuild
from tieredstore.access.store import TieredMessageStore
from tieredstore.codec.message import decode_message
from tieredstore.driver.provider import ProviderWrapper, SegmentProvider, SegmentWrapper
from tieredstore.driver.runtime import Runtime
from tieredstore.driver.segment import FileSegment
from tieredstore.flat.file_store import AGAIN_SECONDS, AGAIN_SECONDS_MAX, BELIEVED_TRIES
from tieredstore.local import encoder
from tieredstore.local.reader import LocalReader
from tieredstore.local.store import LocalMessageStore
from tieredstore.metadata.json_store import JsonMetadataStore
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import BackendRefusedError, BackendUnavailableError
from tieredstore.model.values import PutStatus, QueueKey, QueueRecord, SegmentRecord, SegmentType
from tieredstore.providers.memory import MemoryProvider
from tieredstore.providers.posix import PosixProvider
from tieredstore.testing.faults import Fault, Faults, FaultyProvider
from tieredstore.testing.message_store_contract import ListMessageStore
from tieredstore.testing.samples import TOPIC, a_message

SOUND = QueueKey("Sound", 0)


class Broker:
    """A local store and its tier on one disk; the local store can be set back to a copy."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.local = root / "local"
        self.local.mkdir()
        self.runtime = Runtime.inline()
        self.index = RecordingIndex()
        self.store = opened(self.local)
        self.tier = self.new_tier()

    def new_tier(self) -> Tier:
        return Tier(
            self.root,
            self.store,
            runtime=self.runtime,
            provider=PosixProvider(self.root / "tier", "DefaultCluster", self.runtime),
            index=self.index,
            group_commit_enabled=False,
        )

    def put(self, first: int, end: int, key: QueueKey = KEY) -> None:
        for number in range(first, end):
            self.store.put_message(a_message(number, topic=key.topic, queue_id=key.queue_id))

    def upload(self) -> None:
        self.store.flush()
        self.tier.dispatch()

    def keep_copy(self) -> None:
        """Copy the local store as it will be after `cut_power`."""
        self.store.flush()
        shutil.copytree(self.local, self.root / "copy")

    def cut_power(self) -> None:
        crash(self.store)
        release(self.store)
        self.tier.close()
        shutil.rmtree(self.local)
        shutil.copytree(self.root / "copy", self.local)
        self.store = opened(self.local)
        self.tier = self.new_tier()

    def restart(self) -> None:
        self.tier.close()
        self.store.shutdown()
        self.store = opened(self.local)
        self.tier = self.new_tier()

    def tiered_bytes(self) -> dict[str, bytes]:
        found = (self.root / "tier").rglob("*")
        return {str(path): path.read_bytes() for path in found if path.is_file()}


def release(store: LocalMessageStore) -> None:
    if store._lock is not None:
        store._lock.release()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(tmp_path)
    yield broker
    broker.tier.close()
    broker.store.shutdown()


def after_a_cut(broker: Broker) -> dict[str, bytes]:
    """Upload 20 messages, of which the local store keeps 12; return the tier's bytes."""
    broker.put(0, 12)
    broker.put(0, 3, SOUND)
    broker.keep_copy()
    broker.put(12, 20)
    broker.upload()
    assert broker.tier.span() == (0, 20)
    before = broker.tiered_bytes()
    broker.cut_power()
    return before


def test_a_tier_ahead_of_the_local_store_stops_that_queue_only(broker: Broker) -> None:
    before = after_a_cut(broker)
    broker.put(3, 5, SOUND)
    broker.upload()
    assert broker.tier.span() == (0, 20)
    assert broker.tier.span(SOUND) == (0, 5)
    assert "up to 20, the local store up to 12" in broker.tier.dispatcher.health().stopped[KEY]
    after = broker.tiered_bytes()
    assert {path: after[path] for path in before if f"/{TOPIC}/" in path} == {
        path: before[path] for path in before if f"/{TOPIC}/" in path
    }


def test_it_stays_stopped_when_the_local_queue_has_grown_past_the_tier(broker: Broker) -> None:
    before = after_a_cut(broker)
    broker.upload()
    broker.put(100, 130)
    broker.upload()
    broker.restart()
    broker.put(130, 140)
    broker.upload()
    assert broker.tier.span() == (0, 20)
    assert "the local store up to 12" in broker.tier.dispatcher.health().stopped[KEY]
    assert broker.tiered_bytes() == before


def test_it_is_noticed_when_the_local_queue_grew_before_the_first_look(broker: Broker) -> None:
    before = after_a_cut(broker)
    broker.put(100, 130)
    broker.upload()
    assert broker.tier.span() == (0, 20)
    assert "message 19 is another one" in broker.tier.dispatcher.health().stopped[KEY]
    assert broker.tiered_bytes() == before


def test_what_a_power_cut_did_not_touch_goes_on(broker: Broker) -> None:
    broker.put(0, 20)
    broker.keep_copy()
    broker.upload()
    broker.cut_power()
    broker.put(20, 30)
    broker.upload()
    assert broker.tier.span() == (0, 30)
    assert sorted(set(broker.index.offsets())) == list(range(30))
    assert broker.tier.is_sound
    broker.tier.check()


def test_what_was_not_flushed_is_not_uploaded(broker: Broker) -> None:
    broker.put(0, 10)
    broker.store.flush()
    broker.put(10, 20)
    broker.tier.dispatch(force=True)
    assert broker.tier.span() == (0, 10)


# A broker with an empty catalogue over a tier that has its queues: what it says, and the way out


class Backend:
    """The backend, which outlives the brokers."""

    def __init__(self, root: Path) -> None:
        self.runtime = Runtime.inline()
        self.provider = MemoryProvider(self.runtime)
        self._root = root

    def folder(self, name: str) -> Path:
        return self._root / name

    def life(self, name: str, store: ListMessageStore) -> Tier:
        self.folder(name).mkdir(exist_ok=True)
        return Tier(
            self.folder(name),
            store,
            runtime=self.runtime,
            provider=self.provider,
            group_commit_enabled=False,
        )

    def held(self) -> dict[str, int]:
        return {f"{each.path}/{each.type}": each.size for each in self.provider.list()}


@pytest.mark.parametrize("lives", [1, 3])  # before an operator rebuilds
@pytest.mark.parametrize("own", [3, 9])  # fewer messages than the tier has, and more
def test_its_queue_says_what_to_do_and_a_rebuild_lets_it_be_compared(
    tmp_path: Path, lives: int, own: int
) -> None:
    backend = Backend(tmp_path)
    before = ListMessageStore.opened(backend.runtime)
    first = backend.life("before", before)
    before.fill(5)
    assert first.dispatch(force=True)
    first.close()

    other = ListMessageStore.opened(backend.runtime)
    other.fill(own, body_bytes=77)
    held = backend.held()
    for _ in range(lives):
        tier = backend.life("other", other)
        assert not tier.dispatch(force=True)
        failure = tier.dispatcher.health().failing[KEY]
        assert "bytes that nobody committed" in failure
        assert "`tieredstore rebuild`" in failure
        assert "\n" not in failure
        tier.close()

    with JsonMetadataStore.open(backend.folder("other") / "catalogue.json") as metadata:
        report = rebuild(metadata, backend.provider, first.config, backend.runtime)
    assert not report.problems
    tier = backend.life("other", other)
    tier.dispatch(force=True)
    health = tier.dispatcher.health()
    assert not health.failing
    assert KEY in health.stopped
    assert tier.span() == (0, 5)  # the tier's history stays, and can be read
    assert backend.held() == held
    other.kept_from = 5  # the local messages that differ from the tier's expire
    if own > 5:
        assert tier.dispatcher.resume(KEY) is None
        assert tier.dispatch(force=True)
        assert tier.span() == (0, own)
    tier.close()


# A queue that the tier can never hold stops alone: nothing waits for it, and health says why


ODD = QueueKey("a\\b", 0)
GOOD = QueueKey("Good", 0)


class NarrowProvider(ProviderWrapper):
    """Refuses topics with a capital letter Q."""

    def open(self, path: str, type: SegmentType, base: int) -> FileSegment:
        if "Q" in path:
            raise BackendRefusedError(path, "open", "there is no Q here")
        return super().open(path, type, base)


@pytest.mark.parametrize("topic", ["a\\b", "tab\there", "Query"])
def test_others_go_on_and_expire_beside_it(tmp_path: Path, topic: str) -> None:
    odd = QueueKey(topic, 0)
    runtime = Runtime.inline()
    provider = NarrowProvider(MemoryProvider(runtime), runtime)
    store = ListMessageStore.opened(runtime)
    tier = Tier(tmp_path, store, runtime=runtime, provider=provider)
    store.fill(3, key=odd)
    store.fill(20, key=GOOD)
    for _ in range(3):
        assert tier.dispatch(force=True)
        assert tier.dispatcher.health().refused == {odd}
        assert tier.span(GOOD) == (0, len(store._queues[GOOD]))
        assert tier.dispatcher.needed_from() is None
        health = tier.dispatcher.health()
        assert list(health.stopped) == [odd]
        assert "holds no" in health.stopped[odd] or "no tier holds" in health.stopped[odd]
        assert not health.failing
        store.fill(5, key=odd)
        store.fill(5, key=GOOD)
    assert tier.dispatcher.resume(odd) == tier.dispatcher.health().stopped[odd]
    assert tier.metadata.queue(*odd) is None
    assert tier.metadata.topic(topic) is None
    tier = tier.reopened()
    assert tier.dispatch(force=True)
    assert list(tier.dispatcher.health().stopped) == [odd]
    assert tier.dispatcher.needed_from() is None


def test_a_catalogue_that_names_it_already_keeps_nobody_from_it(tmp_path: Path) -> None:
    store, tier, _ = a_tier(tmp_path)
    tier.metadata.add_topic(ODD.topic)
    tier.metadata.put(
        QueueRecord(broker_name="broker-a", topic=ODD.topic, queue_id=0, update_timestamp=1)
    )
    rows = (SegmentType.COMMIT_LOG, SegmentType.CONSUME_QUEUE)
    for with_segments in (False, True):
        if with_segments:
            for kind in rows:
                tier.metadata.put(
                    SegmentRecord(
                        path=f"broker-a/{ODD.topic}/0",
                        type=kind,
                        base_offset=0,
                        create_timestamp=1,
                    )
                )
        tier = tier.reopened()
        store.fill(3, key=ODD)
        store.fill(3, key=GOOD)
        assert tier.dispatch(force=True)
        assert tier.dispatcher.needed_from() is None
        assert list(tier.dispatcher.health().stopped) == [ODD]
        reason = tier.dispatcher.resume(ODD)
        assert reason is not None
        assert "parts names" in reason


def test_a_local_store_that_holds_such_topics_is_read_and_takes_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder.topic_field.cache_clear()
    with monkeypatch.context() as patched:  # Java accepts such names
        patched.setattr(encoder, "why_no_topic", lambda name: None)
        store = opened(tmp_path / "local")
        bodies = []
        for number in range(3):
            message = a_message(number, topic=ODD.topic)
            bodies.append(message.body)
            assert store.put_message(message).stored
        store.shutdown()
    encoder.topic_field.cache_clear()
    for is_crash in (False, True):
        if is_crash:
            (tmp_path / "local" / "abort").touch()
        with LocalReader.open(tmp_path / "local") as reader:
            assert len(reader.get_message(*ODD, 0).messages) == 3
        store = opened(tmp_path / "local")
        found = store.get_message(*ODD, 0).messages
        assert [decode_message(one.record).body for one in found] == bodies
        refused = store.put_message(a_message(9, topic=ODD.topic))
        assert refused.status is PutStatus.MESSAGE_ILLEGAL
        assert "parts names" in refused.reason
        store.shutdown()
    config = StoreConfig(
        broker_name="b",
        provider="posix",
        path=str(tmp_path / "tier"),
        store_path=str(tmp_path / "local"),
        index_slot_count=64,
        index_item_count=400,
    )
    inner = opened(tmp_path / "local")
    with TieredMessageStore(inner, config, runtime=Runtime.inline()) as tiered:
        tiered.put_message(a_message(0, topic="Good"))
        assert tiered.flush()
        (odd,) = [queue for queue in tiered.health().queues if not queue.ok]
        assert (odd.topic, odd.queue_id) == ODD
        assert "parts names" in (odd.problem or "")
        assert tiered.committed_offset("Good", 0) == 1
        assert len(tiered.get_message(*ODD, 0).messages) == 3
    with TieredReader(config) as tier_reader:
        assert tier_reader.queues() == [GOOD]


# Wrong bytes, read while a queue is recovered, stop the queue for a while but not for good


SECOND_MS = 1000


class WrongBytes(ProviderWrapper):
    """A backend that answers the next reads, or sizes, of one type of segment wrongly."""

    def __init__(self, inner: SegmentProvider, runtime: Runtime) -> None:
        super().__init__(inner, runtime)
        self.wrong_reads = self.wrong_sizes = 0
        self.reads = 0
        self.type = SegmentType.CONSUME_QUEUE

    def wrap(self, segment: FileSegment) -> SegmentWrapper:
        return WrongSegment(segment, self)


class WrongSegment(SegmentWrapper):
    def __init__(self, inner: FileSegment, owner: WrongBytes) -> None:
        super().__init__(inner)
        self._owner = owner

    def read(self, position: int, length: int) -> bytes:
        data = super().read(position, length)
        self._owner.reads += 1
        if self._owner.wrong_reads and self.type is self._owner.type:
            self._owner.wrong_reads -= 1
            return bytes(byte ^ 0x55 for byte in data)
        return data

    def size(self) -> int:
        if self._owner.wrong_sizes and self.type is self._owner.type:
            self._owner.wrong_sizes -= 1
            return super().size() // 2
        return super().size()


def a_behind_tier(root: Path) -> tuple[ListMessageStore, Tier, WrongBytes]:
    """The catalogue names fewer bytes than the backend holds: recovery must read."""
    runtime = Runtime.inline()
    store, provider = ListMessageStore.opened(runtime), WrongBytes(MemoryProvider(runtime), runtime)
    tier = Tier(root, store, runtime=runtime, provider=provider, group_commit_enabled=False)
    store.fill(5)
    assert tier.flush()
    rows = tier.metadata.segments(tier.file().path)
    store.fill(5)
    assert tier.flush()
    tier.metadata.put(*rows)  # as after a crash before the catalogue was written
    store.fill(3)
    return store, tier, provider


KINDS = [
    ("wrong_reads", SegmentType.CONSUME_QUEUE),
    ("wrong_reads", SegmentType.COMMIT_LOG),
    ("wrong_sizes", SegmentType.CONSUME_QUEUE),
    ("wrong_sizes", SegmentType.COMMIT_LOG),
]


@pytest.mark.parametrize(("what", "type"), KINDS)
def test_one_wrong_answer_is_asked_again_at_once(
    tmp_path: Path, what: str, type: SegmentType
) -> None:
    _, tier, provider = a_behind_tier(tmp_path)
    provider.type = type
    setattr(provider, what, 1)
    tier = tier.reopened()
    assert getattr(provider, what) == 0
    assert tier.file().problem is None
    assert tier.flush()
    assert tier.span() == (0, 13)
    tier.check()


@pytest.mark.parametrize(("what", "type"), KINDS)
def test_wrong_answers_that_last_a_while_are_asked_again_later(
    tmp_path: Path, what: str, type: SegmentType
) -> None:
    _, tier, provider = a_behind_tier(tmp_path)
    provider.type = type
    setattr(provider, what, 1000)
    tier = tier.reopened()
    for _ in range(3):
        tier.later(AGAIN_SECONDS * SECOND_MS)
        assert not tier.flush()
        health = tier.dispatcher.health()
        assert KEY in {**health.stopped, **health.failing}
        assert tier.dispatcher.needed_from() is not None  # the queue may still go on
        assert tier.dispatcher.resume(KEY) is not None  # but it cannot now
    setattr(provider, what, 0)
    tier.later(AGAIN_SECONDS_MAX * SECOND_MS)
    tier.dispatch(force=True)  # recovers the queue
    assert tier.flush()
    assert tier.is_sound
    assert tier.span() == (0, 13)
    tier.check()


def test_what_stays_damaged_is_read_ever_more_rarely_and_holds_nobody_up(tmp_path: Path) -> None:
    _, tier, provider = a_behind_tier(tmp_path)
    provider.wrong_reads = 1 << 30
    tier = tier.reopened()
    held = 0
    provider.reads = 0
    for _ in range(24 * 360):  # a day, with a look every ten seconds
        tier.dispatch()
        held += tier.dispatcher.needed_from() is not None
        tier.later(10 * SECOND_MS)
    tries = BELIEVED_TRIES - 1
    assert held * 10 <= AGAIN_SECONDS * 2**tries + 10
    looks = 24 + 10  # one an hour, after up to ten at shorter intervals
    assert looks < provider.reads < 16 * looks


def test_a_wrong_answer_after_a_failed_upload_does_not_stop_the_queue_for_good(
    tmp_path: Path,
) -> None:
    runtime = Runtime.inline()
    faults = Faults()
    wrong = WrongBytes(FaultyProvider(MemoryProvider(runtime), faults, runtime), runtime)
    store = ListMessageStore.opened(runtime)
    tier = Tier(tmp_path, store, runtime=runtime, provider=wrong, group_commit_enabled=False)
    store.fill(5)
    assert tier.flush()
    faults.always = Fault.AFTER
    store.fill(5)
    assert not tier.flush()
    work = tier.dispatcher._walk.work_of(KEY)
    assert tier.dispatcher._walk._batches.drop(work, tier.file())
    faults.always = None
    wrong.wrong_reads = 1000
    tier.flush()
    assert tier.file().problem is not None
    wrong.wrong_reads = 0
    tier.later(AGAIN_SECONDS * SECOND_MS)
    tier.dispatch(force=True)
    assert tier.flush()
    assert tier.span() == (0, 10)
    tier.check()


def test_a_queue_that_is_about_to_be_resumed_keeps_its_messages(tmp_path: Path) -> None:
    """Its broker compares it when it starts, and uploads it only some time later."""
    store, tier, _ = a_tier(tmp_path)
    store.fill(5)
    assert tier.flush()
    stop_queue(tier.file(), "somebody stopped it", tier.metadata)
    store.fill(5)
    tier = tier.reopened()
    tier.dispatcher.was_compared([KEY])
    assert tier.dispatcher.needed_from() is None
    assert ask_to_resume(tier.file().path, tier.metadata)
    tier = tier.reopened()
    tier.dispatcher.was_compared([KEY])
    needed = store.read_range(*KEY, 5, count_max=1, bytes_max=1 << 20)
    assert tier.dispatcher.needed_from() == needed.log_offsets[0]
    assert tier.flush()
    assert tier.span() == (0, 10)
    tier.check()


def test_asked_to_resume_a_queue_that_goes_on_failing_says_so(tmp_path: Path) -> None:
    runtime = Runtime.inline()
    faults = Faults()
    store = ListMessageStore.opened(runtime)
    provider = FaultyProvider(MemoryProvider(runtime), faults, runtime)
    tier = Tier(tmp_path, store, runtime=runtime, provider=provider)
    store.fill(5)
    assert tier.flush()
    assert tier.dispatcher.resume(KEY) is None
    faults.always = Fault.BEFORE
    store.fill(5)
    assert not tier.flush()
    reason = tier.dispatcher.resume(KEY)
    assert reason is not None
    assert tier.dispatcher.health().failing[KEY] in reason
    stop_queue(tier.file(), "somebody stopped it", tier.metadata)
    reason = tier.dispatcher.resume(KEY)
    assert reason is not None
    assert "wait for upload" in reason
    faults.always = None
    tier = tier.reopened()
    faults.always = Fault.BEFORE
    with pytest.raises(BackendUnavailableError):
        tier.dispatcher.resume(KEY)
    faults.always = None
    assert tier.dispatcher.resume(KEY) is None
    assert tier.flush()
    assert tier.span() == (0, 10)

"""Batches put into a store, and appended to a log only."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence

from bench._messages import BATCH_MESSAGES, a_second
from tieredstore.driver.message_store import MessageStore
from tieredstore.driver.runtime import Runtime
from tieredstore.local.commit_log import CommitLog, Flusher
from tieredstore.local.config import LocalConfig
from tieredstore.local.encoder import RecordEncoder
from tieredstore.local.mapped_file import MappedFiles
from tieredstore.model.message_columns import MessageColumns
from tieredstore.model.messages import Message


def put_all(store: MessageStore, messages: Iterable[Sequence[Message]]) -> float:
    """The first batch is not timed; making the others is, if `messages` is a generator."""
    others = iter(messages)
    assert all(result.stored for result in store.put_messages(next(others)))
    count = 0

    def work() -> None:
        nonlocal count
        for batch in others:
            count += len(store.put_messages(batch))

    spent = 1 / a_second(work, 1)
    return count / spent


def as_objects(sent: Sequence[Sequence[Message]]) -> Iterator[Sequence[Message]]:
    """What a broker makes of a producer's batch: one object for each message."""
    for batch in sent:
        yield [
            Message(
                topic="TopicTest",
                queue_id=message.queue_id,
                body=message.body,
                properties_text=message.properties_text,
                born_timestamp=message.born_timestamp,
            )
            for message in batch
        ]


def as_columns(sent: Sequence[Sequence[Message]]) -> Iterator[Sequence[Message]]:
    for batch in sent:
        yield MessageColumns(
            topics="TopicTest",
            queue_ids=[message.queue_id for message in batch],
            bodies=[message.body for message in batch],
            properties_texts=[message.properties_text or "" for message in batch],
            born_timestamps=[message.born_timestamp for message in batch],
        )


def appends_a_second(messages: list[list[Message]]) -> float:
    """Appends to the log only, synced as often as puts are."""
    with tempfile.TemporaryDirectory() as folder, Runtime.threads() as runtime:
        config = LocalConfig(store_path=folder)
        commit_log = a_log(config, runtime)
        flusher = Flusher(
            commit_log.flush, lambda: 0, runtime, interval_ms=config.flush_interval_ms
        )
        flusher.start()
        append_all(commit_log, config, messages[:1])
        speed = a_second(
            lambda: append_all(commit_log, config, messages), len(messages) * BATCH_MESSAGES
        )
        flusher.stop()
        commit_log.close()
        return speed


def a_log(config: LocalConfig, runtime: Runtime) -> CommitLog:
    commit_log = CommitLog(config, runtime, MappedFiles())
    commit_log.load()
    commit_log.start()
    return commit_log


def append_all(commit_log: CommitLog, config: LocalConfig, messages: list[list[Message]]) -> None:
    encode = RecordEncoder(config).encode_all
    queue_offsets = list(range(BATCH_MESSAGES))
    for batch in messages:
        records, _ = encode(batch)
        assert records is not None
        commit_log.append(records, queue_offsets)

"""A small local store with a tier behind it, for the verbs put and offload.

What lives here: all of `try_out` but its arguments. It is imported when a verb runs: help must be
fast.
"""

from __future__ import annotations

import shlex
import sys
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, Final

from tieredstore.access.health import QueueHealth
from tieredstore.access.store import TieredMessageStore
from tieredstore.cli.failures import CommandError, ExitCode, advised
from tieredstore.cli.output import printable
from tieredstore.cli.tier import notes_of_the_library
from tieredstore.cli.tier_options import TierOptions, config_of
from tieredstore.codec.record import KEYS, TAGS
from tieredstore.driver.runtime import Runtime
from tieredstore.local import LocalConfig, LocalMessageStore
from tieredstore.local.files import StoreFiles, stored_sizes
from tieredstore.model.config import MIB, StoreConfig
from tieredstore.model.messages import Message, PutResult

Row = dict[str, Any]

_BATCH_COUNT: Final = 256
_LINE_BYTES_MAX: Final = 4 * MIB  # the store refuses what is longer
# Files of a store that is made here: small, and still sparse.
_SIZES: Final = {
    "commit_log_file_bytes": 64 * MIB,
    "queue_file_bytes": 600_000,
    "index_slot_count": 100_000,
    "index_item_count": 400_000,
}


def messages_of(
    topic: str, queue_id: int, *, body: str | None, keys: Sequence[str], tag: str | None, count: int
) -> Iterator[Message]:
    """What was said on the command line, or the lines of stdin."""
    properties = {}
    if tag is not None:
        properties[TAGS] = tag
    if keys:
        properties[KEYS] = " ".join(keys)
    for text in [body.encode()] if body is not None else _lines():
        message = Message(topic=topic, queue_id=queue_id, body=text, properties=properties)
        for _ in range(count):
            yield message


def _lines() -> Iterator[bytes]:
    if sys.stdin is None:
        raise CommandError("stdin is closed: give the message with --body", ExitCode.USAGE)
    while line := sys.stdin.buffer.readline(_LINE_BYTES_MAX + 1):
        if len(line) > _LINE_BYTES_MAX:
            raise CommandError(f"a line is longer than {_LINE_BYTES_MAX} bytes", ExitCode.USAGE)
        yield line.rstrip(b"\r\n")


def put_all(store_path: str, messages: Iterable[Message]) -> Iterator[Row]:
    """Put and synced; what was stored of each, in its turn. The first refusal ends it."""
    coming = iter(messages)
    with notes_of_the_library(), Runtime.threads() as runtime:
        store = _store(store_path, runtime, make=True)
        store.load()
        try:
            store.start()
            while batch := tuple(islice(coming, _BATCH_COUNT)):
                results = store.put_messages(batch)
                store.flush()
                for message, result in zip(batch, results, strict=True):
                    yield _put_row(message, result)
        finally:
            store.shutdown()


def _put_row(message: Message, result: PutResult) -> Row:
    if not result.stored:
        reason = result.reason or result.status.name
        raise CommandError(printable(f"not put: {reason}"), ExitCode.REFUSED)
    return {
        "topic": message.topic,
        "queue_id": message.queue_id,
        "queue_offset": result.queue_offset,
        "log_offset": result.log_offset,
        "size": result.size,
        "store_timestamp": result.store_timestamp,
        "message_id": result.message_id,
    }


def offloaded(tier: TierOptions, *, seal: bool) -> tuple[StoreConfig, list[Row]]:
    """The settings of the tier, and how far each queue is in it now."""
    config = _config_of(tier)
    with notes_of_the_library(), Runtime.threads() as runtime:
        local = _store(config.store_path, runtime, make=False, named=tier.config)
        with TieredMessageStore(local, config, runtime=runtime) as store:
            done = store.flush(seal=seal)
            rows = [
                {
                    "topic": key.topic,
                    "queue_id": key.queue_id,
                    "max_offset": local.max_offset(*key) or 0,
                    "committed_offset": store.committed_offset(*key) or 0,
                }
                for key in sorted(local.queues())
            ]
            queues = [queue for queue in store.health().queues if not queue.ok]
    if not done:
        told = f", the first: {_why_behind(queues[0])}" if queues else ""
        text = advised(f"not all of it was uploaded{told}")
        # A queue with a problem was stopped: the tier lacks something, or disagrees.
        damaged = any(queue.problem for queue in queues)
        raise CommandError(printable(text), ExitCode.DAMAGE if damaged else ExitCode.REFUSED)
    return config, rows


def _why_behind(queue: QueueHealth) -> str:
    why = queue.problem or queue.last_error or f"{queue.behind_count} messages wait"
    return f"{queue.topic}/{queue.queue_id}: {why}"


def _config_of(tier: TierOptions) -> StoreConfig:
    if tier.config is None and tier.store_path is None:
        raise CommandError("which local store? Name it with --store-path DIR", ExitCode.USAGE)
    if tier.config is None and tier.provider is None:
        tier = replace(tier, provider="posix", path=str(Path(str(tier.store_path)) / "tier"))
    return config_of(tier)


def _store(
    store_path: str, runtime: Runtime, *, make: bool, named: Path | None = None
) -> LocalMessageStore:
    files = StoreFiles(Path(store_path))
    is_there = files.commit_log.is_dir()
    if not is_there and not make:
        raise CommandError(
            printable(f"{store_path}: no local store: it has no commitlog directory"),
            ExitCode.NOT_THERE,
        )
    sizes: dict[str, Any] = stored_sizes(files) or ({} if is_there else _SIZES)
    config = replace(_local_settings(named), store_path=store_path, **sizes)
    return LocalMessageStore(config, runtime)


def _local_settings(file: Path | None) -> LocalConfig:
    """A store that RocketMQ made has the sizes of its broker.conf; a TOML has them in a table."""
    if file is None or (
        file.suffix == ".toml" and LocalConfig.TABLE not in tomllib.loads(file.read_text("utf-8"))
    ):
        return LocalConfig()
    return LocalConfig.from_file(file)


def how_to_look(config: StoreConfig) -> str:
    """A command that shows what is in the tier."""
    words = ["tieredstore", "queues", "--provider", config.provider]
    for name, value in (
        ("--path", config.path),
        ("--bucket", config.bucket),
        ("--prefix", config.prefix),
        ("--endpoint", config.endpoint),
        ("--store-path", config.store_path),
        ("--cluster", config.cluster_name if config.cluster_name != "DefaultCluster" else ""),
        ("--broker", config.broker_name),
    ):
        if value:
            words += [name, value]
    return printable(shlex.join(words))

"""The verbs to try things out: `put` into a small local store, and `offload` to its tier."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tieredstore.cli.local import local_settings
from tieredstore.cli.options import Json, OneQueue, TierOptions, Topic, config_of, option, verb
from tieredstore.cli.output import (
    CommandError,
    ExitCode,
    Row,
    hint,
    printable,
    write_json,
    write_line,
    write_row,
)
from tieredstore.model.amounts import counted

if TYPE_CHECKING:  # help must be fast
    from tieredstore.access.health import QueueHealth
    from tieredstore.access.store import TieredMessageStore
    from tieredstore.driver.runtime import Runtime
    from tieredstore.local import LocalMessageStore
    from tieredstore.model.config import StoreConfig
    from tieredstore.model.messages import Message, PutResult
    from tieredstore.model.values import QueueKey

app = typer.Typer(rich_markup_mode=None)

StorePath = Annotated[
    str, option("--store-path DIR", "The broker's local store; its config/ has the catalogue.")
]

_BATCH_COUNT: Final = 256
_LINE_BYTES_MAX: Final = 4 << 20  # the store refuses what is longer
# Sizes of the files of a new store: small, and still sparse.
_SIZES: Final = {
    "commit_log_file_bytes": 64 << 20,
    "queue_file_bytes": 600_000,
    "index_slot_count": 100_000,
    "index_item_count": 400_000,
}


@verb(app, "put Orders --store-path /tmp/try --body hello --key order-1")
def put(
    topic: Topic,
    store_path: StorePath,
    queue: OneQueue = 0,
    body: Annotated[
        str | None, option("--body", "Its body; default: a message for each line of stdin.")
    ] = None,
    keys: Annotated[
        list[str] | None, option("--key", "Key to find it by; may be repeated.")
    ] = None,
    tag: Annotated[str | None, option("--tag", "Tag to filter by.")] = None,
    repeat: Annotated[int, option("--repeat", "Number of times to put each message.", min=1)] = 1,
    json: Json = False,
) -> None:
    """Put messages into a local store in a folder, and sync them, to try things out.

    The store is created if there is none; an existing one must not be open in a broker.
    `tieredstore local cat` shows its messages, `offload` copies them to a tier.
    """
    last, stored = None, 0
    for last in _put_all(
        store_path,
        _messages_of(topic, queue or 0, body=body, keys=keys or [], tag=tag, count=repeat),
        count=0 if body is None else repeat,
    ):
        stored += 1
        if json:
            write_json(last)
    if not json:
        where = "" if last is None else f", the last one at offset {last['queue_offset']}"
        write_line(printable(f"{counted(stored, 'message')} put into {topic}/{queue or 0}{where}"))
        if stored:
            words = shlex.join(["tieredstore", "offload", "--store-path", store_path])
            hint(printable(f"next: {words}"))


@verb(app, "offload --store-path /tmp/try")
def offload(
    tier: TierOptions,
    seal: Annotated[
        bool, option("--seal", "Seal every segment; upload the key index too.")
    ] = False,
    json: Json = False,
) -> None:
    """Upload messages of a local store that its tier lacks, as a broker with the plugin does.

    --store-path names the local store; no broker may have it open. Without --provider or --config
    the tier is the folder `tier` in it.
    """
    config, rows = _offloaded(tier, seal=seal)
    for row in rows:
        committed = f"{row['committed_offset']:,} of {row['max_offset']:,} in the tier"
        if not row["is_tiered"]:
            committed = (
                "stays out of the tier, as RocketMQ's own topics, light queues, and topics with "
                "the name of the cluster or the broker do"
            )
        write_row(row, f"{row['topic']}/{row['queue_id']}: {committed}", json=json)
    if not json:
        hint(f"next: {_how_to_look(config)}")
        hint("with the same options: `query TOPIC KEY` finds messages, `report` draws a page")


def _messages_of(
    topic: str, queue_id: int, *, body: str | None, keys: Sequence[str], tag: str | None, count: int
) -> Iterator[Message]:
    """The message of the command line, or the lines of stdin."""
    from tieredstore.codec.record import KEYS, TAGS
    from tieredstore.model.messages import Message

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


def _put_all(store_path: str, messages: Iterable[Message], *, count: int) -> Iterator[Row]:
    """Put and sync the messages; yields a row for each stored one. `count` is their number, 0 if
    unknown. The first refusal ends it."""
    from tieredstore.cli.tier import library_at_work
    from tieredstore.driver.runtime import Runtime

    coming = iter(messages)
    with library_at_work() as work, Runtime.threads() as runtime:
        work.of_messages(count)
        store = _store(store_path, runtime, make=True)
        store.load()
        try:
            store.start()
            while batch := tuple(islice(coming, _BATCH_COUNT)):
                results = store.put_messages(batch)
                store.flush()
                work.did(len(batch), sum(result.size for result in results))
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


def _offloaded(tier: TierOptions, *, seal: bool) -> tuple[StoreConfig, list[Row]]:
    """Upload the messages; the settings of the tier, and how far each queue is in it now."""
    from tieredstore.access.store import TieredMessageStore
    from tieredstore.access.upkeep import TendChore
    from tieredstore.access.wiring import provider_of
    from tieredstore.cli.tier import library_at_work
    from tieredstore.driver.runtime import Runtime

    config = _config_of(tier)
    with library_at_work() as work, Runtime.threads() as runtime:
        local = _store(config.store_path, runtime, make=False, named=tier.config)
        with (
            closing(provider_of(config, runtime, work)) as provider,
            TieredMessageStore(
                local, config, runtime=runtime, provider=provider, metrics=work
            ) as store,
        ):
            work.of_messages(sum(_waiting(local, store, key) for key in local.queues()))
            done = store.flush(seal=seal)
            TendChore(provider, config.broker_name).step()  # this store is not open for long
            rows = [
                {
                    "topic": key.topic,
                    "queue_id": key.queue_id,
                    "max_offset": local.max_offset(*key) or 0,
                    "committed_offset": store.committed_offset(*key) or 0,
                    "is_tiered": not store.topic_filter.rejects(key.topic),
                }
                for key in sorted(local.queues())
            ]
            health = store.health()
            queues = [queue for queue in health.queues if not queue.ok]
    if health.fence is not None:
        text = f"another writer has taken over this tier: {health.fence.describe()}"
        raise CommandError(printable(text), ExitCode.REFUSED)
    if not done:
        first = f", the first: {_why_behind(queues[0])}" if queues else ""
        text = f"not all of it was uploaded{first}"
        if not queues and health.catalogue.error is not None:
            text = f"readers elsewhere do not see all of it yet: {health.catalogue.error}"
        # A queue with a problem was stopped: the tier lacks something, or disagrees.
        damaged = any(queue.problem for queue in queues)
        raise CommandError(printable(text), ExitCode.DAMAGE if damaged else ExitCode.REFUSED)
    return config, rows


def _waiting(local: LocalMessageStore, store: TieredMessageStore, key: QueueKey) -> int:
    if store.topic_filter.rejects(key.topic):
        return 0
    first = store.committed_offset(*key) or local.min_offset(*key) or 0
    return max(0, (local.max_offset(*key) or 0) - first)


def _why_behind(queue: QueueHealth) -> str:
    why = queue.problem or queue.last_error or f"{counted(queue.behind_count, 'message')} behind"
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
    from tieredstore.local import LocalConfig, LocalMessageStore
    from tieredstore.local.files import StoreFiles, stored_sizes

    files = StoreFiles(Path(store_path))
    is_there = files.commit_log.is_dir()
    if not make and not Path(store_path).is_dir():
        raise CommandError(printable(f"no such directory: {store_path}"), ExitCode.NOT_THERE)
    if not is_there and not make:
        raise CommandError(
            printable(f"{store_path}: no local store: it has no commitlog directory"),
            ExitCode.NOT_THERE,
        )
    sizes: dict[str, Any] = stored_sizes(files) or ({} if is_there else _SIZES)
    settings = LocalConfig() if named is None else local_settings(named)
    config = replace(settings, store_path=store_path, **sizes)
    return LocalMessageStore(config, runtime)


def _how_to_look(config: StoreConfig) -> str:
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

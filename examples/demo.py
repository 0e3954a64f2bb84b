"""`make demo`: a store with a tier behind it, then the tier alone; finally, what to do next.

    python examples/demo.py [--provider posix | memory | s3] [--keep DIRECTORY]

With `s3` the bucket is on moto, an S3 server of its own in this process.
"""

from __future__ import annotations

import argparse
import importlib.util
import logging
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from tieredstore import (
    GetStatus,
    Message,
    Runtime,
    SegmentProvider,
    StoreConfig,
    TieredMessageStore,
    TieredReader,
    TieredStoreError,
)
from tieredstore.codec.message import decode_message
from tieredstore.driver.certify import certify
from tieredstore.driver.object_requests import OPERATIONS
from tieredstore.driver.registry import PROVIDERS, resolve
from tieredstore.local import LocalConfig, LocalMessageStore
from tieredstore.providers.certified import keep
from tieredstore.providers.object_provider import ObjectProvider
from tieredstore.providers.posix import PosixProvider
from tieredstore.providers.s3_settings import ObjectStoreSettings

TOPICS, QUEUES = ("orders", "payments", "shipments"), 2
MESSAGES, BATCH, CUSTOMERS, SHOWN = 30_000, 500, 1_500, 12
PER_QUEUE = MESSAGES // len(TOPICS) // QUEUES
INDEX: dict[str, Any] = {"index_slot_count": 100_000, "index_item_count": 400_000}


def messages() -> Iterator[Message]:
    """Orders, each in all topics, with two keys: the order's own and the customer's."""
    for number in range(MESSAGES // len(TOPICS)):
        for topic in TOPICS:
            yield Message(
                topic=topic,
                queue_id=number % QUEUES,
                body=body_of(topic, number),
                properties={
                    "TAGS": ("new", "paid", "sent")[number % 3],
                    "KEYS": f"order-{number} customer-{number % CUSTOMERS}",
                },
            )


def body_of(topic: str, number: int) -> bytes:
    return f'{{"topic":"{topic}","order":{number},"note":"{"as agreed, " * 20}"}}'.encode()


def provider_of(config: StoreConfig, runtime: Runtime) -> SegmentProvider:
    """A store makes its provider itself; the demo makes one to ask it what it did."""
    kind: type[SegmentProvider] = resolve(PROVIDERS, config.provider, SegmentProvider)
    return kind.from_config(config, runtime)


@contextmanager
def bucket(config: StoreConfig) -> Iterator[StoreConfig]:
    """An S3 server in this process, on a free port of 127.0.0.1, with one bucket."""
    if importlib.util.find_spec("moto") is None:
        raise SystemExit("the S3 server of this demo is moto: pip install 'moto[s3,server]'")
    from moto.server import ThreadedMotoServer

    from tieredstore.providers.s3_admin import create_bucket
    from tieredstore.testing.memory_objects import one_at_a_time

    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # otherwise it prints each request
    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    assert server._server is not None
    server._server.app = one_at_a_time(server._server.app)  # else two may win a race for an object
    try:
        config = replace(
            config,
            endpoint="http://{}:{}".format(*server.get_host_and_port()),
            bucket="demo",
            region="us-east-1",
            access_key="demo",
            secret_key="demo",
        )
        create_bucket(ObjectStoreSettings.from_config(config))
        yield config
    finally:
        server.stop()


def prove(provider: ObjectProvider) -> Counter[str]:
    """Do what a tier does itself before its first write to a bucket; returns the requests made."""
    started = time.perf_counter()
    certificate = certify(provider.counted)
    keep(provider.counted, certificate)
    seconds = time.perf_counter() - started
    passed = sum(not found.is_damage for found in certificate.findings)
    checks = f"{passed:>12} of {len(certificate.findings)} checks passed"
    print(f"  {'prove that this server can hold a tier':<52} {seconds:7.2f} s {checks}", flush=True)
    return Counter(provider.counted.counts.snapshot())


def put_and_offload(
    config: StoreConfig, provider: SegmentProvider, runtime: Runtime, folder: Path
) -> None:
    files = {"commit_log_file_bytes": 32 << 20, "queue_file_bytes": 600_000, **INDEX}
    local = LocalMessageStore(
        LocalConfig.from_mapping({"store_path": str(folder), **files}), runtime
    )
    with TieredMessageStore(local, config, runtime=runtime, provider=provider) as store:
        prepared = list(messages())
        with timed(f"put {MESSAGES:,} messages into the local store", MESSAGES):
            for start in range(0, MESSAGES, BATCH):
                assert local.put_messages(prepared[start : start + BATCH]).all_ok
        with timed("upload all of them: commit logs, then queues", MESSAGES):
            assert store.flush()
        with timed("seal the segments, compact and upload the key index", 2 * MESSAGES, "keys"):
            assert store.flush(seal=True)
        assert store.health().ok
        assert all(store.committed_offset(*key) == PER_QUEUE for key in store.queues())


def read_at_random(reader: TieredReader, count: int) -> list[float]:
    dice, seconds = random.Random(7), []
    for _ in range(count):
        topic, queue_id = dice.choice(TOPICS), dice.randrange(QUEUES)
        offset = dice.randrange(PER_QUEUE)
        started = time.perf_counter()
        found = reader.get_message(topic, queue_id, offset, count_max=1)
        seconds.append(time.perf_counter() - started)
        assert found.status is GetStatus.FOUND
        body = decode_message(found.messages[0].record).body
        assert body == body_of(topic, offset * QUEUES + queue_id)
    return seconds


def find_by_key(reader: TieredReader, count: int) -> list[float]:
    dice, seconds = random.Random(8), []
    for _ in range(count):
        topic, number = dice.choice(TOPICS), dice.randrange(MESSAGES // len(TOPICS))
        started = time.perf_counter()
        found = reader.query_message(topic, f"order-{number}")
        seconds.append(time.perf_counter() - started)
        assert found.complete
        bodies = [decode_message(each.record).body for each in found.messages]
        assert bodies == [body_of(topic, number)]
    return seconds


def find_by_time(reader: TieredReader) -> list[float]:
    seconds = []
    for topic, queue_id in reader.queues():
        middle = reader.store_time(topic, queue_id, PER_QUEUE // 2)
        assert middle is not None
        started = time.perf_counter()
        offset = reader.offset_by_time(topic, queue_id, middle)
        seconds.append(time.perf_counter() - started)
        assert offset is not None
        assert reader.store_time(topic, queue_id, offset) == middle
    return seconds


def read_back(reader: TieredReader, sample: int) -> None:
    with timed("read every message of the tier, as columns", MESSAGES):
        assert sum(len(run) for _, run in reader.runs()) == MESSAGES
    say_each(f"read {sample:,} by offset, at random", read_at_random(reader, sample))
    say_each(f"find {sample:,} by key", find_by_key(reader, sample))
    say_each("find where to start by time, in each queue", find_by_time(reader))
    show_one(reader)


@contextmanager
def timed(what: str, count: int, of: str = "messages") -> Iterator[None]:
    started = time.perf_counter()
    yield
    seconds = time.perf_counter() - started
    print(f"  {what:<52} {seconds:7.2f} s {count / seconds:>12,.0f} {of}/s", flush=True)


def say_each(what: str, seconds: list[float]) -> None:
    middle, slow = (sorted(seconds)[int(len(seconds) * share)] * 1e6 for share in (0.5, 0.99))
    print(f"  {what:<52} {sum(seconds):7.2f} s {middle:>9,.0f} µs each, 99 % below {slow:,.0f} µs")


def show_one(reader: TieredReader) -> None:
    key = f"customer-{CUSTOMERS // 2}"
    found = reader.query_message("orders", key).messages
    message = decode_message(found[0].record)
    print(f"\n  {key} has {len(found)} orders; the newest of them:")
    when = datetime.fromtimestamp(message.store_timestamp / 1000).astimezone()
    print(f"    {message.topic}/{message.queue_id} offset {message.queue_offset}", end=", ")
    print(f"stored {when:%H:%M:%S.%f}"[:-3], message.body[:44].decode() + "…")


def show_files(names: list[tuple[str, int]]) -> None:
    total = sum(size for _, size in names)
    print(f"\n  {total:,} bytes in {len(names)} files: RocketMQ's, and ours under a dot:")
    for name, size in names[:SHOWN]:
        print(f"  {size:>13,}  {name}")
    if len(names) > SHOWN:
        print(f"  {'':>13}  … and {len(names) - SHOWN} more")


def names_of(provider: SegmentProvider, root: Path) -> list[tuple[str, int]]:
    """Everything in the backend: segments, and our own objects beside them."""
    if isinstance(provider, ObjectProvider):
        return sorted((each.key, each.size) for each in provider.counted.list(""))
    if isinstance(provider, PosixProvider):
        found = (path for path in root.rglob("*") if path.is_file())
        return sorted((str(path.relative_to(root)), path.stat().st_size) for path in found)
    return sorted(
        (f"{each.path}/{each.type.name}/{each.base}", each.size) for each in provider.list()
    )


def show_bill(proof: Counter[str], providers: list[ObjectProvider]) -> None:
    prices = providers[0].counted.prices
    rest: Counter[str] = Counter()
    for each in providers:
        rest.update(each.counted.counts.snapshot())
    rest -= proof
    head = "".join(f"{kind:>8}" for kind in OPERATIONS)
    print(f"\n  {'requests':<24}{head}   at S3's list prices")
    for what, counts in (("to prove the server, once", proof), ("all the rest", rest)):
        dollars = sum(counts[kind] * prices.of(kind) / 1000 for kind in OPERATIONS)
        row = "".join(f"{counts[kind]:>8,}" for kind in OPERATIONS)
        print(f"  {what:<24}{row}   ${dollars:.5f}")


def run(config: StoreConfig, folder: Path) -> None:
    with Runtime.threads() as runtime, provider_of(config, runtime) as provider:
        proof = Counter[str]()
        if isinstance(provider, ObjectProvider):
            print(f"  client: {provider.counted.describe()}; the server is moto, in this process\n")
            proof = prove(provider)
        put_and_offload(config, provider, runtime, folder / "local")
        shutil.rmtree(folder / "local")
        another = provider  # a tier in memory ends with its provider, and is not published
        if config.provider != "memory":
            shutil.rmtree(config.store_path)
            config = replace(config, store_path=str(folder / "reader"))
            another = provider_of(config, runtime)
        print("\nthe broker's files are deleted; a reader elsewhere, on the tier alone:\n")
        with another, TieredReader(config, runtime=runtime, provider=another) as reader:
            read_back(reader, 300 if config.provider == "s3" else 2_000)
            show_files(names_of(another, Path(config.path)))
        if isinstance(provider, ObjectProvider) and isinstance(another, ObjectProvider):
            show_bill(proof, [provider, another])


def say_what_next(config: StoreConfig, kept: Path | None) -> None:
    """Print three commands that work now on the tier that is kept, or how to keep one."""
    tool = Path(sys.executable).with_name("tieredstore")
    if tool.is_relative_to(Path.cwd()):
        tool = tool.relative_to(Path.cwd())
    load = "--messages-per-second 2000 --message-bytes 1000 --queues 64"
    commands = [f"{tool} cost {load}", f"{sys.executable} {sys.argv[0]} --keep demo-tier"]
    if kept:
        file = kept / "tieredstore.toml"
        lines = [f'broker_name = "{config.broker_name}"', 'provider = "posix"', 'path = "tier"']
        lines += ['store_path = "reader"', *(f"{name} = {size}" for name, size in INDEX.items())]
        file.write_text("\n".join(["[tieredstore]", *lines, ""]), encoding="utf-8")
        commands = [
            f"{tool} query orders customer-{CUSTOMERS // 2} --config {file}",
            f"{tool} report --config {file} --out {kept / 'report.html'}",
            commands[0],
        ]
        print(f"\nthe tier stays in {kept}")
    print("\nnext:", *commands, sep="\n  ")
    print("  to put it into a broker, read docs/wrap-your-store.md; into S3, docs/operations.md")


def main() -> int:
    parser = argparse.ArgumentParser(description="A store with a tier, then the tier alone.")
    parser.add_argument("--provider", default="posix", choices=["memory", "posix", "s3"])
    parser.add_argument("--keep", type=Path, help="leave the tier here, if it is of posix")
    options = parser.parse_args()
    with ExitStack() as ending:
        kept = options.keep if options.provider == "posix" else None
        folder = kept or Path(
            ending.enter_context(tempfile.TemporaryDirectory(prefix="tieredstore-demo-"))
        )
        config = StoreConfig(
            broker_name="demo-broker",
            provider=options.provider,
            path=str(folder / "tier"),
            store_path=str(folder / "broker"),
            **INDEX,
        )
        print(f"\na local store, and behind it a tier: {options.provider}\n")
        if options.provider == "s3":
            config = ending.enter_context(bucket(config))
        try:
            run(config, folder)
        except TieredStoreError as error:
            print(f"demo: {error}", file=sys.stderr)
            return 1
    say_what_next(config, kept)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Opens something, forks, and lets the child use it in every way: see test_after_a_fork.

It runs as its own process, because a process with threads should not be forked. It prints what the
child could do although it must not, and what is wrong in the parent afterwards.
"""

from __future__ import annotations

import asyncio
import gc
import json
import multiprocessing
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from tests.local.store_audit import a_config
from tieredstore.access.reader import TieredReader
from tieredstore.access.store import TieredMessageStore
from tieredstore.aio import AsyncTieredStore
from tieredstore.driver.durable import FileLock
from tieredstore.driver.runtime import Runtime
from tieredstore.local.reader import LocalReader
from tieredstore.local.store import LocalMessageStore
from tieredstore.metadata import JsonMetadataStore
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import OtherProcessError
from tieredstore.model.messages import Message
from tieredstore.testing.metadata_contract import log_segment

TOPIC: Final = "t"
Calls = dict[str, Callable[[], object]]


def a_put(text: str) -> Message:
    return Message(topic=TOPIC, queue_id=0, body=text.encode(), properties={"KEYS": text})


def tier_config(root: Path) -> StoreConfig:
    return StoreConfig(
        broker_name="b",
        provider="posix",
        path=str(root / "tier"),
        store_path=str(root / "local"),
        index_slot_count=64,
        index_item_count=400,
    )


def reads_of(store: Any) -> Calls:
    return {
        "get_message": lambda: store.get_message(TOPIC, 0, 0),
        "query_message": lambda: store.query_message(TOPIC, "parent0"),
        "max_offset": lambda: store.max_offset(TOPIC, 0),
    }


def whole_store(store: Any) -> Calls:
    return {
        **reads_of(store),
        "put_message": lambda: store.put_message(a_put("child")),
        "put_at_once": lambda: store.put_at_once(a_put("child")),
        "put_messages": lambda: store.put_messages([a_put("child")]),
        "put_messages_at_once": lambda: store.put_messages_at_once([a_put("child")]),
        "put_message_future": lambda: store.put_message_future(a_put("child")),
        "flush": store.flush,
        "load": store.load,
        "start": store.start,
        "delete_topics": lambda: store.delete_topics([TOPIC]),
        "destroy": store.destroy,
        "shutdown": store.shutdown,
    }


class Found:
    """What went wrong, on both sides of the fork."""

    def __init__(self) -> None:
        self.wrong: list[str] = []

    def expect(self, holds: bool, what: str) -> None:
        if not holds:
            self.wrong.append(what)


def refuse_all(calls: Calls) -> list[str]:
    """In the child: the calls that are not refused as they must be."""
    wrong = []
    for name, call in calls.items():
        try:
            wrong.append(f"{name} gave {call()!r}"[:200])
        except OtherProcessError as error:
            if error.opened_by != os.getppid() or "\n" in str(error):
                wrong.append(f"{name}: {error}")
        except BaseException as error:  # noqa: BLE001 - what came instead is the finding
            wrong.append(f"{name} raised {error!r}"[:200])
    return wrong


def in_child(found: Found, call: Callable[[], list[str]]) -> None:
    """Run the call in a forked child, and collect its findings."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(theirs, json.dumps(call()).encode())
        except BaseException:  # noqa: BLE001
            os.write(theirs, json.dumps([traceback.format_exc()]).encode())
        gc.collect()
        os._exit(0)
    os.close(theirs)
    with os.fdopen(ours, "rb") as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    found.wrong += json.loads(said)


def leave_by_the_other_ends(found: Found, entered: Any, close: Callable[[], object]) -> None:
    """Let children leave by `sys.exit` out of a `with`, by its end, and by multiprocessing."""
    child = os.fork()
    if child == 0:
        try:
            entered.__exit__(SystemExit, SystemExit(0), None)
        except BaseException:  # noqa: BLE001
            os._exit(9)
        try:
            entered.__exit__(None, None, None)
        except OtherProcessError:
            os._exit(0)
        os._exit(8)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    found.expect(status == 0, f"leaving a with ended with {status}")
    process = multiprocessing.get_context("fork").Process(target=gc.collect)
    process.start()
    process.join(60)
    found.expect(process.exitcode == 0, f"a worker ended with {process.exitcode}")


def local(root: Path, flush: str) -> Found:
    found = Found()
    store = LocalMessageStore(a_config(root, flush_disk_type=flush), Runtime.threads())
    store.load()
    store.start()
    for number in range(5):
        store.put_message(a_put(f"parent{number}"))
    in_child(found, lambda: refuse_all(whole_store(store)))
    found.expect((root / "abort").exists(), "abort is gone")
    in_child(found, lambda: [] if FileLock.acquire(root / "lock") is None else ["lock is free"])
    offsets = [store.put_message(a_put(f"parent{number}")).queue_offset for number in (5, 6)]
    found.expect(offsets == [5, 6], f"the parent's puts got {offsets}")
    check_all_of_it(found, store)
    store.shutdown()
    found.expect(not (root / "abort").exists(), "the parent ended uncleanly")
    store = LocalMessageStore(a_config(root, flush_disk_type=flush), Runtime.threads())
    store.load()
    report = store.recovery
    found.expect(report is not None and not report.abnormal and not report.damages, f"{report}")
    check_all_of_it(found, store)
    store.shutdown()
    return found


def check_all_of_it(found: Found, store: Any) -> None:
    records = [one.record for one in store.get_message(TOPIC, 0, 0).messages]
    found.expect(len(records) == 7, f"{len(records)} messages")
    for number, record in enumerate(records):
        found.expect(b"parent%d" % number in record, f"message {number} is another one")


def tiered(root: Path) -> Found:
    found = Found()
    inner = LocalMessageStore(a_config(root / "local"), Runtime.threads())
    with TieredMessageStore(inner, tier_config(root)) as store:
        for number in range(5):
            store.put_message(a_put(f"parent{number}"))
        found.expect(store.flush(), "flush failed")
        in_child(found, lambda: refuse_all({**whole_store(store), "health": store.health}))
        in_child(found, lambda: in_a_loop(AsyncTieredStore(store)))
        leave_by_the_other_ends(found, store, store.shutdown)
        found.expect((root / "local" / "abort").exists(), "abort is gone")
        for number in (5, 6):
            store.put_message(a_put(f"parent{number}"))
        found.expect(store.flush(), "flush failed afterwards")
        found.expect(store.committed_offset(TOPIC, 0) == 7, "not all is in the tier")
        check_all_of_it(found, store)
    with TieredReader(tier_config(root)) as reader:
        check_all_of_it(found, reader)
    return found


def in_a_loop(store: AsyncTieredStore) -> list[str]:
    calls: dict[str, Callable[[], Any]] = {
        "async put": lambda: store.put_message(a_put("child")),
        "async batch": lambda: store.put_messages([a_put("child")]),
        "async get": lambda: store.get_message(TOPIC, 0, 0),
        "async flush": store.flush,
        "async shutdown": store.shutdown,
    }
    wrong = []
    for name, call in calls.items():
        try:
            asyncio.run(call())
            wrong.append(f"{name} was let through")
        except OtherProcessError:
            pass
    return wrong


def readers(root: Path) -> Found:
    found = Found()
    inner = LocalMessageStore(a_config(root / "local"), Runtime.threads())
    with TieredMessageStore(inner, tier_config(root)) as store:
        for number in range(7):
            store.put_message(a_put(f"parent{number}"))
        found.expect(store.flush(seal=True), "flush failed")
    with TieredReader(tier_config(root)) as reader:
        check_all_of_it(found, reader)
        begun = reader.messages()
        calls = {
            **reads_of(reader),
            "load": reader.load,
            "refresh": reader.refresh,
            "messages": lambda: next(begun),
            "close": reader.close,
        }
        in_child(found, lambda: refuse_all(calls))
        leave_by_the_other_ends(found, reader, reader.close)
        check_all_of_it(found, reader)
        in_child(found, lambda: opened_anew(root))
    with LocalReader.open(root / "local") as local_reader:
        check_all_of_it(found, local_reader)
        in_child(
            found,
            lambda: refuse_all(
                {
                    **reads_of(local_reader),
                    "log_facts": local_reader.log_facts,
                    "close": local_reader.close,
                }
            ),
        )
        leave_by_the_other_ends(found, local_reader, local_reader.close)
        check_all_of_it(found, local_reader)
    return found


def opened_anew(root: Path) -> list[str]:
    """In the child: what it opens itself works, with its own threads."""
    found = Found()
    with TieredReader(tier_config(root)) as reader:
        check_all_of_it(found, reader)
    return found.wrong


def catalogue(root: Path) -> Found:
    found = Found()
    path = root / "catalogue.json"
    with JsonMetadataStore.open(path) as store:
        store.put(log_segment(0))
        with JsonMetadataStore.open(path, read_only=True) as follower:
            calls: Calls = {
                "put": lambda: store.put(log_segment(1)),
                "add_topic": lambda: store.add_topic("x"),
                "compact": store.compact,
                "segments": store.segments,
                "close": store.close,
                "follower.segments": follower.segments,
                "follower.refresh": follower.refresh,
                "follower.close": follower.close,
            }
            # As if threads of the parent were in the middle of a commit and a read.
            with store._commit_lock, store._tables_lock, follower._tables_lock:
                in_child(found, lambda: refuse_all(calls))
        leave_by_the_other_ends(found, store, store.close)
        store.put(log_segment(2))
    with JsonMetadataStore.open(path, read_only=True) as reader:
        bases = [row.base_offset for row in reader.segments()]
        expected = [log_segment(number).base_offset for number in (0, 2)]
        found.expect(bases == expected, f"{bases} instead of {expected}")
    return found


def pool(root: Path) -> Found:
    """Fork after two runtimes were made: the threads of the used one do not exist in the child."""
    found = Found()
    used, unused = Runtime.threads(), Runtime.threads()
    used.fetch.submit(int).result()
    in_child(found, lambda: refuse_all({"submit": lambda: used.fetch.submit(int)}))
    in_child(found, lambda: [] if used.close() else ["close"])
    in_child(found, lambda: [] if unused.fetch.submit(int, "7").result() == 7 else ["unused"])
    found.expect(used.fetch.submit(int, "7").result() == 7, "the parent's threads are gone")
    used.close()
    unused.close()
    return found


def main(case: str, folder: str) -> None:
    root = Path(folder)
    cases: dict[str, Callable[[], Found]] = {
        "ASYNC_FLUSH": lambda: local(root, "ASYNC_FLUSH"),
        "SYNC_FLUSH": lambda: local(root, "SYNC_FLUSH"),
        "tiered": lambda: tiered(root),
        "readers": lambda: readers(root),
        "catalogue": lambda: catalogue(root),
        "pool": lambda: pool(root),
    }
    sys.stdout.write(json.dumps(cases[case]().wrong))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])

"""A broker's machine with a tier elsewhere: its disk can be lost, copied and put back.

No tests.
"""

from __future__ import annotations

import shutil
from collections import defaultdict
from pathlib import Path
from typing import Any

from tests.access.tiered_kit import a_config
from tests.codec.encoders import rewrite_log_offset
from tests.providers.object_kit import StruckClient
from tieredstore.access.store import TieredMessageStore
from tieredstore.codec.message import decode_message
from tieredstore.driver.retry import RetryPolicy
from tieredstore.driver.runtime import Runtime
from tieredstore.local.config import LocalConfig
from tieredstore.local.store import LocalMessageStore
from tieredstore.model.messages import Message
from tieredstore.model.values import GetStatus, PutStatus, QueueKey
from tieredstore.providers.object_provider import ObjectProvider
from tieredstore.testing.faults import Faults
from tieredstore.testing.memory_objects import MemoryObjectClient, MemoryObjects
from tieredstore.testing.samples import STORE_TIMESTAMP, TOPIC, a_message

ONE, TWO, OTHER = QueueKey(TOPIC, 0), QueueKey(TOPIC, 1), QueueKey("Other", 7)
LOG_FILE_BYTES = 1 << 13


class Machine:
    """A broker that lives one life after the other; `tier` is `folder` or `bucket`.

    Records every acknowledged body by queue and number, and which of them were certainly in the
    tier.
    """

    def __init__(self, root: Path, tier: str = "folder") -> None:
        self.root = root
        self.disk = root / "disk"
        self.objects = MemoryObjects() if tier == "bucket" else None
        self.acked: dict[QueueKey, dict[int, list[bytes]]] = defaultdict(lambda: defaultdict(list))
        self.committed: dict[QueueKey, dict[int, bytes]] = defaultdict(dict)
        self.log_offsets: set[int] = set()
        self.unheard: set[bytes] = set()  # put by a process that died before the reply
        self.faults: Faults | None = None  # of the requests of the next life over a bucket
        self.local_settings: dict[str, Any] = {}
        self._number = 0
        self.store: TieredMessageStore
        self.client: MemoryObjectClient  # of the last life over a bucket

    def local_config(self) -> LocalConfig:
        return LocalConfig(
            store_path=str(self.disk / "local"),
            commit_log_file_bytes=LOG_FILE_BYTES,
            queue_file_bytes=400,
            index_slot_count=101,
            index_item_count=400,
            dispatch_interval_ms=0,
            disk_full_percent=100,
            disk_clean_percent=100,
            **self.local_settings,
        )

    def config(self, **settings: Any) -> Any:
        folder = {"provider": "posix", "path": str(self.root / "tier")}
        return a_config(self.disk, **(folder if self.objects is None else {}), **settings)

    def tiered(self, **settings: Any) -> TieredMessageStore:
        """A new store, not loaded yet."""
        runtime = Runtime.inline(now_ms=STORE_TIMESTAMP)
        local = LocalMessageStore(self.local_config(), runtime)
        config = self.config(**settings)
        if self.objects is None:
            return TieredMessageStore(local, config, runtime=runtime)
        self.client = MemoryObjectClient(self.objects)
        provider = ObjectProvider(self.client, config.cluster_name, runtime)
        if self.faults is not None:  # nothing is tried again
            struck = StruckClient(self.client, self.faults)
            policy = RetryPolicy(retries_max=0)
            provider = ObjectProvider(struck, config.cluster_name, runtime, retry=policy)
        return TieredMessageStore(local, config, runtime=runtime, provider=provider)

    def open(self, **settings: Any) -> TieredMessageStore:
        self.store = self.tiered(**settings)
        self.store.load()
        self.store.start()
        return self.store

    def end(self, *, drain: bool = True) -> None:
        self.store.shutdown(drain=drain)

    # What happens to the disk

    def lose_local(self) -> None:
        shutil.rmtree(self.disk / "local")

    def lose_disk(self) -> None:
        shutil.rmtree(self.disk)

    def image(self, name: str) -> None:
        """Copy the closed local store."""
        shutil.copytree(self.disk / "local", self.root / name)

    def restore(self, name: str) -> None:
        shutil.rmtree(self.disk / "local", ignore_errors=True)
        shutil.copytree(self.root / name, self.disk / "local")

    # Messages

    def put(self, count: int, *keys: QueueKey) -> None:
        """Put `count` messages into each queue; none may be refused."""
        for key in keys or (ONE, TWO, OTHER):
            for _ in range(count):
                message = self.message(key)
                self.unheard.add(message.body)
                put = self.store.put_message(message)
                assert put.stored, put.reason
                self.unheard.remove(message.body)
                assert put.log_offset not in self.log_offsets
                self.log_offsets.add(put.log_offset)
                self.acked[key][put.queue_offset].append(b"%d" % self._number)

    def message(self, key: QueueKey) -> Message:
        self._number += 1
        body = b"%d" % self._number
        one = a_message(self._number, topic=key.topic, queue_id=key.queue_id)
        return Message(topic=one.topic, queue_id=one.queue_id, body=body, properties=one.properties)

    def flush(self) -> None:
        assert self.store.flush()
        self.note_committed()

    def note_committed(self) -> None:
        fetcher = self.store._loaded().tier.fetcher
        for key, numbers in self.acked.items():
            for number, bodies in numbers.items():
                if bodies and fetcher.contains(*key, number):
                    self.committed[key].setdefault(number, bodies[-1])

    def read(self, key: QueueKey) -> dict[int, bytes]:
        """Every message of the queue, by number; the numbers of a page must be consecutive."""
        found: dict[int, bytes] = {}
        offset = self.store.min_offset(*key) or 0
        while True:
            page = self.store.get_message(*key, offset)
            if page.status is not GetStatus.FOUND:
                assert page.status in (
                    GetStatus.OFFSET_OVERFLOW_ONE,
                    GetStatus.NO_MESSAGE_IN_QUEUE,
                    GetStatus.NO_MATCHED_LOGIC_QUEUE,
                ), page.status
                return found
            for one in page.messages:
                message = decode_message(rewrite_log_offset(one.record, 0))
                assert (message.topic, message.queue_id, message.queue_offset) == (
                    *key,
                    one.queue_offset,
                )
                found[one.queue_offset] = message.body
            assert list(found)[-len(page.messages) :] == list(
                range(offset, offset + len(page.messages))
            )
            offset = page.next_offset

    def check(self, *keys: QueueKey) -> None:
        """Every committed message is read back, and every message read was acknowledged under its
        number. No number of a committed message was given to another message later."""
        for key in keys or list(self.acked):
            found = self.read(key)
            for number, body in self.committed[key].items():
                assert found[number] == body, (key, number)
            for number, body in found.items():
                assert body in self.acked[key][number] or body in self.unheard, (key, number)
            for number, bodies in self.acked[key].items():
                if number in self.committed[key]:
                    assert self.committed[key][number] == bodies[-1], (key, number)

    def refusal(self, key: QueueKey) -> str:
        put = self.store.put_message(self.message(key))
        assert put.status is PutStatus.SERVICE_NOT_AVAILABLE
        return put.reason

"""What the broker remembers beside messages: topics and consumer offsets, in RocketMQ's files.

`config/topics.json` and `config/consumerOffset.json` of the store's folder. RocketMQ writes keys
that are numbers without quotes; here they are read, and written with quotes, which it reads.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from examples.broker.commands import Code, RefusedError
from tieredstore import InvalidConfigError, QueueKey

QUEUES_MAX: Final = 1_024
TOPICS_MAX: Final = 10_000
OFFSETS_MAX: Final = 1_000_000
READ: Final = 4
WRITE: Final = 2
INHERIT: Final = 1

DEFAULT_TOPIC: Final = "TBW102"  # whose route clients take for a topic that is not there yet
RETRY: Final = "%RETRY%"
DEAD: Final = "%DLQ%"
SCHEDULE: Final = "SCHEDULE_TOPIC_XXXX"

_TOPIC: Final = re.compile(r"[%|a-zA-Z0-9_-]{1,127}")
_GROUP: Final = re.compile(r"[%|a-zA-Z0-9_-]{1,120}")
_BARE_KEY: Final = re.compile(r"([{,]\s*)(-?\d+)(\s*:)")


class JsonFile:
    """One file, replaced as a whole: a crash leaves the old one or the new one."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> dict[str, Any]:
        """Empty where there is no file. Raises InvalidConfigError for one that is no JSON."""
        try:
            text = self.path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return {}
        with self.refusals():
            try:
                found = json.loads(text)
            except ValueError:
                found = json.loads(_BARE_KEY.sub(r'\1"\2"\3', text))
            if not isinstance(found, dict):
                raise TypeError("no object of JSON")
        return found

    @contextmanager
    def refusals(self) -> Iterator[None]:
        """What a file should not hold is an error that names it."""
        try:
            yield
        except (AttributeError, RecursionError, RefusedError, TypeError, ValueError) as error:
            raise InvalidConfigError(f"{self.path}: cannot be used: {error!s:.200}") from error

    def write(self, content: Mapping[str, Any]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        beside = self.path.with_suffix(".tmp")
        with open(beside, "w", encoding="utf-8") as file:
            json.dump(content, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, self.path)
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


class Kept(ABC):
    """A table in a file of its own, written in a thread while the event loop goes on."""

    def __init__(self, path: Path) -> None:
        self._file = JsonFile(path)
        self._content = self._file.read()  # also what is not ours in it
        self._has_changes = False
        self._keeping = asyncio.Lock()

    @abstractmethod
    def _table(self) -> dict[str, Any]:
        """All that is to be written; nothing of it changes later."""

    async def keep(self) -> None:
        """When this returns, all that was changed before is on disk. Raises OSError."""
        async with self._keeping:  # two writers could leave the older table behind
            if self._has_changes:
                self._has_changes = False
                try:
                    await asyncio.to_thread(self._file.write, {**self._content, **self._table()})
                except BaseException:
                    self._has_changes = True
                    raise


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """How many queues a topic has, and what may be done with them."""

    name: str
    read_queues: int
    write_queues: int
    perm: int = READ | WRITE

    def __post_init__(self) -> None:
        if not _TOPIC.fullmatch(self.name):
            raise RefusedError(Code.SYSTEM_ERROR, f"{self.name!r:.140} cannot name a topic")
        if min(self.read_queues, self.write_queues) < 0:
            raise RefusedError(Code.SYSTEM_ERROR, "a topic cannot have less than no queues")
        if max(self.read_queues, self.write_queues) > QUEUES_MAX:
            raise RefusedError(Code.SYSTEM_ERROR, f"more than {QUEUES_MAX} queues")


class Topics(Kept):
    """The topics of this broker."""

    def __init__(self, folder: Path, *, creates: bool = True, default_queues: int = 8) -> None:
        """`creates`: a message for a topic that is not there makes it."""
        super().__init__(folder / "topics.json")
        self._creates = creates
        self._topics: dict[str, Topic] = {}
        with self._file.refusals():
            for name, found in self._content.get("topicConfigTable", {}).items():
                self._topics[name] = Topic(
                    name=name,
                    read_queues=int(found.get("readQueueNums", 16)),
                    write_queues=int(found.get("writeQueueNums", 16)),
                    perm=int(found.get("perm", READ | WRITE)),
                )
        if creates and DEFAULT_TOPIC not in self._topics:
            self._topics[DEFAULT_TOPIC] = Topic(
                name=DEFAULT_TOPIC,
                read_queues=default_queues,
                write_queues=default_queues,
                perm=READ | WRITE | INHERIT,
            )

    def all(self) -> list[Topic]:
        return list(self._topics.values())

    def get(self, name: str) -> Topic | None:
        return self._topics.get(name)

    def set(self, topic: Topic) -> None:
        """Make it, or change it: a topic never has fewer queues than it had."""
        known = self._topics.get(topic.name)
        if known is not None:
            topic = replace(
                topic,
                read_queues=max(topic.read_queues, known.read_queues),
                write_queues=max(topic.write_queues, known.write_queues),
            )
        elif len(self._topics) >= TOPICS_MAX:
            raise RefusedError(Code.SYSTEM_ERROR, f"there are {TOPICS_MAX} topics already")
        if topic == known:
            return
        self._topics[topic.name] = topic
        self._has_changes = True

    def found(self, queues: Iterable[QueueKey]) -> None:
        """Know the topics of a store, also where the file of topics was lost."""
        counts: dict[str, int] = {}
        for name, queue_id in queues:
            counts[name] = max(counts.get(name, 0), queue_id + 1)
        for name, count in counts.items():
            if name not in self._topics and _TOPIC.fullmatch(name):
                self.set(Topic(name=name, read_queues=count, write_queues=count))

    def to_write(self, name: str, *, wanted_queues: int) -> Topic:
        """The topic of a message that is sent; made where that is allowed."""
        topic = self._topics.get(name)
        if topic is None:
            template = self._topics.get(DEFAULT_TOPIC)
            if name.startswith((RETRY, DEAD)):
                count = 1
            elif self._creates and template is not None:
                count = max(1, min(wanted_queues, template.write_queues))
            else:
                raise RefusedError(Code.TOPIC_NOT_EXIST, f"there is no topic {name!r:.140}")
            topic = Topic(name=name, read_queues=count, write_queues=count)
            self.set(topic)
        if not topic.perm & WRITE:
            raise RefusedError(Code.NO_PERMISSION, f"{name}: sending is forbidden")
        return topic

    def _table(self) -> dict[str, Any]:
        table = {
            topic.name: {
                "attributes": {},
                "order": False,
                **self._content.get("topicConfigTable", {}).get(topic.name, {}),
                "perm": topic.perm,
                "readQueueNums": topic.read_queues,
                "topicFilterType": "SINGLE_TAG",
                "topicName": topic.name,
                "topicSysFlag": 0,
                "writeQueueNums": topic.write_queues,
            }
            for topic in self._topics.values()
        }
        return {"topicConfigTable": table}


class Offsets(Kept):
    """How far each group has consumed each queue."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "consumerOffset.json")
        self._offsets: dict[tuple[str, str], dict[int, int]] = {}
        with self._file.refusals():
            for key, found in self._content.get("offsetTable", {}).items():
                topic, _, group = key.partition("@")
                self._offsets[topic, group] = {int(at): int(to) for at, to in found.items()}
        self._count = sum(map(len, self._offsets.values()))

    def get(self, group: str, topic: str, queue_id: int) -> int | None:
        return self._offsets.get((topic, group), {}).get(queue_id)

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        require_group(group)
        queues = self._offsets.setdefault((topic, group), {})
        known = queues.get(queue_id)
        if known is None:
            if self._count >= OFFSETS_MAX:
                raise RefusedError(Code.SYSTEM_ERROR, f"there are {OFFSETS_MAX} offsets already")
            self._count += 1
        if known != offset:
            queues[queue_id] = offset
            self._has_changes = True

    def _table(self) -> dict[str, Any]:
        table = {
            f"{topic}@{group}": {str(at): offset for at, offset in sorted(queues.items())}
            for (topic, group), queues in self._offsets.items()
        }
        return {"offsetTable": table}


def require_group(group: str) -> str:
    if not _GROUP.fullmatch(group):
        raise RefusedError(Code.SYSTEM_ERROR, f"{group!r:.140} cannot name a group")
    return group

"""A broker's consumer offsets and topics, in the format of RocketMQ's files.

    | file                | member           | a row                                          |
    | ------------------- | ---------------- | ---------------------------------------------- |
    | consumerOffset.json | offsetTable      | `topic@group`: the offset of each queue id     |
    | topics.json         | topicConfigTable | a topic's name: its queues, rights, attributes |

Besides its table each file has a `dataVersion`, and perhaps members that are unknown here, which
are kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Generic, TypeAlias, TypeVar

from tieredstore.codec import fastjson
from tieredstore.codec.fastjson import Document, refuse_deep
from tieredstore.model.errors import InvalidArgumentError
from tieredstore.model.topics import why_no_topic
from tieredstore.model.values import INT32_MAX, INT64_MAX, Json, require_text, require_whole

R = TypeVar("R")

FILE_BYTES_MAX: Final = 256 << 20  # a table larger than this is something else
READABLE: Final = 4
WRITABLE: Final = 2
_VERSION: Final = "dataVersion"
_QUEUE_ID: Final = re.compile("[0-9]{1,10}")


@dataclass(frozen=True, slots=True, order=True)
class DataVersion:
    """How often a table was changed, and when last. The greater one is newer, as in RocketMQ."""

    state_version: int = 0
    counter: int = 0
    timestamp: int = 0

    def next(self, now_ms: int) -> DataVersion:
        return DataVersion(self.state_version, self.counter + 1, now_ms)

    def as_json(self) -> dict[str, Json]:
        return {
            "counter": self.counter,
            "stateVersion": self.state_version,
            "timestamp": self.timestamp,
        }

    @classmethod
    def from_json(cls, value: Json) -> DataVersion:
        """The version in a document; the initial one if absent. Raises ValueError if invalid."""
        row = _object(_VERSION, {} if value is None else value)
        return cls(*(_number(row, name, 0) for name in ("stateVersion", "counter", "timestamp")))


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """A topic as a RocketMQ broker keeps it. `perm` is a sum of 4 (read), 2 (write) and 1 (new
    topics inherit its settings). `others` are fields that are not known here."""

    name: str
    read_queue_count: int = 16
    write_queue_count: int = 16
    perm: int = READABLE | WRITABLE
    filter_type: str = "SINGLE_TAG"
    sys_flag: int = 0
    is_ordered: bool = False
    attributes: Mapping[str, str] = field(default_factory=dict)
    others: Mapping[str, Json] = field(default_factory=dict)

    def __post_init__(self) -> None:
        reason = why_no_topic(self.name)
        if reason is not None:
            raise InvalidArgumentError(f"topic {self.name!r:.80}: {reason}")
        numbers = (self.read_queue_count, self.write_queue_count, self.perm, self.sys_flag)
        require_whole(*numbers)
        if not all(0 <= number <= INT32_MAX for number in numbers):
            raise InvalidArgumentError(f"topic {self.name}: not each of {numbers} is a count")
        require_text("filter_type", self.filter_type)
        if not isinstance(self.is_ordered, bool):  # a broker cannot read 1 or 0
            raise InvalidArgumentError(f"is_ordered: want a truth, not {self.is_ordered!r:.80}")
        for name, given in (("attributes", self.attributes), ("others", self.others)):
            if not isinstance(given, Mapping):
                raise InvalidArgumentError(f"{name}: want a mapping, not {given!r:.80}")
        require_text("attributes", *self.attributes, *self.attributes.values())


OffsetRow: TypeAlias = dict[int, int]
"""The offset of each queue id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableContents(Generic[R]):
    """The contents of a file. `others` are members that are not known here."""

    rows: Mapping[str, R] = field(default_factory=dict)
    version: DataVersion = DataVersion()
    others: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TableFormat(Generic[R]):
    """The format of one of the tables: its file and its rows."""

    file_name: str
    member: str
    read_row: Callable[[str, Json], R]
    """Raises ValueError for anything else than such a row."""
    write_row: Callable[[R], Mapping[str, Json] | Mapping[int, int]]
    derived: frozenset[str] = frozenset()
    """Members that RocketMQ makes from the table, and never reads."""

    def decode(self, data: bytes) -> TableContents[R]:
        """The contents of a file. Raises ValueError, naming the row, if it is not such a table."""
        document = fastjson.decode(data)
        table = document.get(self.member)
        known = {self.member, _VERSION} | self.derived
        others = {name: value for name, value in document.items() if name not in known}
        refuse_deep(others)
        return TableContents(
            rows=self.rows_of(_object(self.member, {} if table is None else table)),
            version=DataVersion.from_json(document.get(_VERSION)),
            others=others,
        )

    def rows_of(self, table: Mapping[str, Json]) -> dict[str, R]:
        return {key: self.read_row(key, value) for key, value in table.items()}

    def encode(self, contents: TableContents[R]) -> bytes:
        """The text that RocketMQ writes for the same table, except for the order of its rows."""
        document: dict[str, Document] = {_VERSION: contents.version.as_json(), **contents.others}
        document[self.member] = {key: self.write_row(row) for key, row in contents.rows.items()}
        return fastjson.encode(dict(sorted(document.items())))

    def as_json(self, row: R) -> dict[str, Json]:
        """One row as plain JSON, with texts as keys."""
        return {str(name): value for name, value in self.write_row(row).items()}


def _read_offsets(key: str, value: Json) -> OffsetRow:
    found: OffsetRow = {}
    for queue_id, offset in _object(key, value).items():
        if not _QUEUE_ID.fullmatch(queue_id) or int(queue_id) > INT32_MAX:
            raise ValueError(f"{key:.300}: {queue_id!r:.40} is no queue id")
        if type(offset) is not int or not -INT64_MAX <= offset <= INT64_MAX:
            raise ValueError(f"{key:.300}: {offset!r:.40} is no offset")
        found[int(queue_id)] = offset
    return found


_FIELDS: Final = frozenset(
    {
        "topicName",
        "readQueueNums",
        "writeQueueNums",
        "perm",
        "topicFilterType",
        "topicSysFlag",
        "order",
        "attributes",
    }
)


def _read_topic(key: str, value: Json) -> TopicConfig:
    row = _object(key, value)
    attributes = _object(key, row.get("attributes") or {})
    others = {name: value for name, value in row.items() if name not in _FIELDS}
    refuse_deep(others)
    is_ordered, filter_type = row.get("order"), row.get("topicFilterType")
    if is_ordered is not None and not isinstance(is_ordered, bool):
        raise ValueError(f"{key:.300}: order is {is_ordered!r:.40}")
    return TopicConfig(
        name=key,
        read_queue_count=_number(row, "readQueueNums", 16),
        write_queue_count=_number(row, "writeQueueNums", 16),
        perm=_number(row, "perm", READABLE | WRITABLE),
        filter_type="SINGLE_TAG" if filter_type is None else str(filter_type),
        sys_flag=_number(row, "topicSysFlag", 0),
        is_ordered=is_ordered or False,
        attributes={name: str(value) for name, value in attributes.items()},
        others=others,
    )


def _write_topic(topic: TopicConfig) -> dict[str, Json]:
    row: dict[str, Json] = {
        **topic.others,
        "attributes": dict(topic.attributes),
        "order": topic.is_ordered,
        "perm": topic.perm,
        "readQueueNums": topic.read_queue_count,
        "topicFilterType": topic.filter_type,
        "topicName": topic.name,
        "topicSysFlag": topic.sys_flag,
        "writeQueueNums": topic.write_queue_count,
    }
    return dict(sorted(row.items()))


CONSUMER_OFFSETS: Final[TableFormat[OffsetRow]] = TableFormat(
    "consumerOffset.json", "offsetTable", _read_offsets, dict, frozenset({"groupTopicMap"})
)
TOPICS: Final[TableFormat[TopicConfig]] = TableFormat(
    "topics.json", "topicConfigTable", _read_topic, _write_topic
)


def _object(name: str, value: Json) -> dict[str, Json]:
    if not isinstance(value, dict):
        raise ValueError(f"{name:.300}: {value!r:.40} is no object")
    return value


def _number(row: Mapping[str, Json], name: str, default: int) -> int:
    value = row.get(name)
    if value is None:
        return default
    if type(value) is not int or not 0 <= value <= INT64_MAX:
        raise ValueError(f"{name} is {value!r:.40}")
    return value

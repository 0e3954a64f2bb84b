"""A small remoting client for tests, with blocking sockets and its own codec.

It shares no code with the broker, as an error of both would look right.
"""

from __future__ import annotations

import json
import socket
import struct
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

SECONDS = 30.0
SHORT_SEND: dict[str, Any] = {"c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1, "h": 0, "i": ""}
"""Fields of a send by their short names (code 310), without the group, the topic and retries."""


@dataclass(frozen=True)
class Reply:
    """An answer, or a request from the broker."""

    code: int
    opaque: int
    flag: int
    remark: str | None
    fields: dict[str, str]
    body: bytes


@dataclass(frozen=True)
class Found:
    """A message as a client reads it from a pull's bytes."""

    topic: str
    queue_id: int
    queue_offset: int
    log_offset: int
    sys_flag: int
    flag: int
    reconsume_times: int
    store_host: tuple[str, int]
    store_timestamp: int
    body: bytes
    properties: dict[str, str]

    @property
    def offset_id(self) -> str:
        host, port = self.store_host
        return (socket.inet_aton(host) + struct.pack(">iq", port, self.log_offset)).hex().upper()


def json_frame(code: int, opaque: int, flag: int, fields: Mapping[str, Any], body: bytes) -> bytes:
    header = json.dumps(
        {
            "code": code,
            "language": "PYTHON",
            "version": 431,
            "opaque": opaque,
            "flag": flag,
            "extFields": dict(fields),
        }
    ).encode()
    return struct.pack(">ii", 4 + len(header) + len(body), len(header)) + header + body


def binary_frame(
    code: int, opaque: int, flag: int, fields: Mapping[str, Any], body: bytes
) -> bytes:
    packed = b""
    for name, value in fields.items():
        name_bytes, value_bytes = name.encode(), str(value).encode()
        packed += struct.pack(">h", len(name_bytes)) + name_bytes
        packed += struct.pack(">i", len(value_bytes)) + value_bytes
    header = struct.pack(">hBhiii", code, 3, 431, opaque, flag, 0)
    header += struct.pack(">i", len(packed)) + packed
    size = 4 + len(header) + len(body)
    return struct.pack(">iI", size, 1 << 24 | len(header)) + header + body


def read_frame(data: bytes) -> Reply:
    """Decode the part of a frame after its length."""
    (word,) = struct.unpack_from(">I", data)
    size = word & 0xFFFFFF
    header, body = data[4 : 4 + size], data[4 + size :]
    if not word >> 24:
        found = json.loads(header)
        return Reply(
            found["code"],
            found["opaque"],
            found["flag"],
            found.get("remark"),
            found.get("extFields") or {},
            body,
        )
    code, _, _, opaque, flag, remark_size = struct.unpack_from(">hBhiii", header)
    at = 17
    remark = header[at : at + remark_size].decode()
    at += remark_size + 4
    fields = {}
    while at < len(header):
        (length,) = struct.unpack_from(">h", header, at)
        name = header[at + 2 : at + 2 + length].decode()
        at += 2 + length
        (length,) = struct.unpack_from(">i", header, at)
        fields[name] = header[at + 4 : at + 4 + length].decode()
        at += 4 + length
    return Reply(code, opaque, flag, remark or None, fields, body)


def properties_text(properties: Mapping[str, str]) -> str:
    return "".join(f"{name}\x01{value}\x02" for name, value in properties.items())


def read_messages(data: bytes) -> list[Found]:
    """The records of an answer, one after the other; hosts are IPv4."""
    found = []
    at = 0
    while at < len(data):
        size, magic, crc, queue_id, flag, queue_offset, log_offset, sys_flag = struct.unpack_from(
            ">iIIiiqqi", data, at
        )
        assert magic == 0xDAA320A7
        store_timestamp, host, port, reconsumed, _, body_size = struct.unpack_from(
            ">q4siiqi", data, at + 56
        )
        body_at = at + 88
        body = data[body_at : body_at + body_size]
        assert zlib.crc32(body) & 0x7FFFFFFF == crc & 0x7FFFFFFF
        topic_at = body_at + body_size + 1
        topic_end = topic_at + data[topic_at - 1]
        (properties_size,) = struct.unpack_from(">h", data, topic_end)
        text = data[topic_end + 2 : topic_end + 2 + properties_size].decode()
        assert topic_end + 2 + properties_size == at + size
        pairs = (entry.split("\x01", 1) for entry in text.split("\x02") if entry)
        found.append(
            Found(
                topic=data[topic_at:topic_end].decode(),
                queue_id=queue_id,
                queue_offset=queue_offset,
                log_offset=log_offset,
                sys_flag=sys_flag,
                flag=flag,
                reconsume_times=reconsumed,
                store_host=(socket.inet_ntoa(host), port),
                store_timestamp=store_timestamp,
                body=body,
                properties=dict(pairs),
            )
        )
        at += size
    return found


class Remoting:
    """One connection. `heard` holds requests that the broker sends meanwhile."""

    def __init__(self, port: int, *, binary: bool = False) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=SECONDS)
        self.heard: list[Reply] = []
        self._frame = binary_frame if binary else json_frame
        self._replies: dict[int, Reply] = {}
        self._opaque = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.socket.close()

    def begin(self, code: int, body: bytes = b"", *, frame_flag: int = 0, **fields: Any) -> int:
        self._opaque += 1
        self.socket.sendall(self._frame(code, self._opaque, frame_flag, fields, body))
        return self._opaque

    def end(self, opaque: int) -> Reply:
        while opaque not in self._replies:
            self._hear()
        return self._replies.pop(opaque)

    def ask(self, code: int, body: bytes = b"", **fields: Any) -> Reply:
        return self.end(self.begin(code, body, **fields))

    def hear(self, code: int) -> Reply:
        """The next request of this code from the broker."""
        while True:
            for found in self.heard:
                if found.code == code:
                    self.heard.remove(found)
                    return found
            self._hear()

    def _hear(self) -> None:
        found = read_frame(self._exactly(struct.unpack(">i", self._exactly(4))[0]))
        if found.flag & 1:
            self._replies[found.opaque] = found
        else:
            self.heard.append(found)

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            piece = self.socket.recv(size - len(data))
            if not piece:
                raise ConnectionError("the broker has closed the connection")
            data += piece
        return bytes(data)

    # -- what clients ask ---------------------------------------------------------------------

    def create_topic(self, topic: str, queues: int) -> None:
        answer = self.ask(
            17,
            topic=topic,
            defaultTopic="TBW102",
            readQueueNums=queues,
            writeQueueNums=queues,
            perm=6,
            topicFilterType="SINGLE_TAG",
            topicSysFlag=0,
            order="false",
        )
        assert answer.code == 0, answer

    def begin_send(
        self,
        topic: str,
        queue_id: int,
        body: bytes,
        *,
        frame_flag: int = 0,
        sys_flag: int = 0,
        **properties: str,
    ) -> int:
        """Send by version 2, whose fields have names of one letter."""
        return self.begin(
            310,
            body,
            frame_flag=frame_flag,
            a="producers",
            b=topic,
            c="TBW102",
            d="4",
            e=queue_id,
            f=sys_flag,
            g=1_700_000_000_000,
            h=7,
            i=properties_text(properties),
            j=0,
            k="false",
            m="false",
        )

    def send(self, topic: str, queue_id: int, body: bytes, **properties: Any) -> Reply:
        answer = self.end(self.begin_send(topic, queue_id, body, **properties))
        assert answer.code == 0, answer
        return answer

    def begin_batch(
        self, topic: str, queue_id: int, messages: Iterable[tuple[bytes, dict[str, str]]]
    ) -> int:
        packed = b""
        for body, properties in messages:
            text = properties_text(properties).encode()
            packed += struct.pack(">iiiii", 22 + len(body) + len(text), 0, 0, 7, len(body)) + body
            packed += struct.pack(">h", len(text)) + text
        return self.begin(
            320, packed, a="producers", b=topic, e=queue_id, f=0, g=1, h=0, i="", j=0, m="true"
        )

    def send_batch(
        self, topic: str, queue_id: int, messages: Iterable[tuple[bytes, dict[str, str]]]
    ) -> Reply:
        return self.end(self.begin_batch(topic, queue_id, messages))

    def begin_pull(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        *,
        group: str = "consumers",
        tags: str = "*",
        wait_ms: int = 0,
        count: int = 32,
    ) -> int:
        return self.begin(
            11,
            consumerGroup=group,
            topic=topic,
            queueId=queue_id,
            queueOffset=offset,
            maxMsgNums=count,
            sysFlag=4 | (2 if wait_ms else 0),
            commitOffset=0,
            suspendTimeoutMillis=wait_ms,
            subscription=tags,
            subVersion=1,
            expressionType="TAG",
        )

    def pull(self, topic: str, queue_id: int, offset: int, **others: Any) -> list[Found]:
        """Some messages, or none."""
        answer = self.end(self.begin_pull(topic, queue_id, offset, **others))
        return read_messages(answer.body) if answer.code == 0 else []

    def pull_all(self, topic: str, queue_id: int, offset: int = 0, **others: Any) -> list[Found]:
        found: list[Found] = []
        while True:
            answer = self.end(self.begin_pull(topic, queue_id, offset, **others))
            if answer.code not in (0, 20):
                return found
            found += read_messages(answer.body) if answer.code == 0 else []
            offset = int(answer.fields["nextBeginOffset"])

    def heartbeat(self, client: str, group: str, *topics: str) -> None:
        subscriptions = [
            {"topic": topic, "subString": "*", "tagsSet": [], "codeSet": [], "subVersion": 1}
            for topic in topics
        ]
        consumer = {
            "groupName": group,
            "consumeType": "CONSUME_PASSIVELY",
            "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
            "subscriptionDataSet": subscriptions,
            "unitMode": False,
        }
        data = {"clientID": client, "consumerDataSet": [consumer], "producerDataSet": []}
        answer = self.ask(34, json.dumps(data).encode())
        assert answer.code == 0, answer

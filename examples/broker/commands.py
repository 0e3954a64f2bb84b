"""The vocabulary of the protocol: codes, the fields of a request, and an answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final

import msgspec

from examples.broker.frames import ANSWER, Command

if TYPE_CHECKING:
    from examples.broker.server import Connection

INT32_MAX: Final = 2**31 - 1
INT64_MAX: Final = 2**63 - 1


class Ask(IntEnum):
    """Codes of requests that are answered here, or sent to clients."""

    SEND_MESSAGE = 10
    PULL_MESSAGE = 11
    QUERY_MESSAGE = 12
    QUERY_CONSUMER_OFFSET = 14
    UPDATE_CONSUMER_OFFSET = 15
    UPDATE_AND_CREATE_TOPIC = 17
    SEARCH_OFFSET_BY_TIMESTAMP = 29
    GET_MAX_OFFSET = 30
    GET_MIN_OFFSET = 31
    GET_EARLIEST_STORE_TIME = 32
    VIEW_MESSAGE_BY_ID = 33
    HEART_BEAT = 34
    UNREGISTER_CLIENT = 35
    CONSUMER_SEND_BACK = 36
    GET_CONSUMERS_OF_GROUP = 38
    CONSUMER_IDS_CHANGED = 40  # to a client
    LOCK_BATCH_MQ = 41
    UNLOCK_BATCH_MQ = 42
    CHECK_CLIENT_CONFIG = 46
    GET_ROUTE_OF_TOPIC = 105
    GET_CLUSTER_INFO = 106
    GET_ALL_TOPICS = 206
    SEND_MESSAGE_V2 = 310
    SEND_BATCH_MESSAGE = 320
    LITE_PULL_MESSAGE = 361


class Code(IntEnum):
    """Codes of answers."""

    SUCCESS = 0
    SYSTEM_ERROR = 1
    SYSTEM_BUSY = 2
    REQUEST_CODE_NOT_SUPPORTED = 3
    FLUSH_DISK_TIMEOUT = 10
    MESSAGE_ILLEGAL = 13
    SERVICE_NOT_AVAILABLE = 14
    NO_PERMISSION = 16
    TOPIC_NOT_EXIST = 17
    PULL_NOT_FOUND = 19
    PULL_RETRY_IMMEDIATELY = 20
    PULL_OFFSET_MOVED = 21
    QUERY_NOT_FOUND = 22
    SUBSCRIPTION_PARSE_FAILED = 23
    SUBSCRIPTION_NOT_EXIST = 24


class RefusedError(Exception):
    """A request that is answered with a code and a reason instead of a result."""

    def __init__(self, code: Code, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


@dataclass(slots=True, kw_only=True)
class Answer:
    """The answer to a request."""

    code: Code = Code.SUCCESS
    fields: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    remark: str | None = None

    def to(self, asked: Command) -> Command:
        """The command of this answer, encoded as the request was."""
        return Command(
            code=self.code,
            opaque=asked.opaque,
            flag=ANSWER,
            remark=self.remark,
            fields=self.fields,
            body=self.body,
            is_binary=asked.is_binary,
        )


@dataclass(frozen=True, slots=True)
class Request:
    """A command and the connection that it came over.

    A missing or invalid field raises RefusedError.
    """

    command: Command
    connection: Connection

    @property
    def body(self) -> bytes:
        return self.command.body

    def text(self, name: str, default: str | None = None) -> str:
        value = self.command.fields.get(name, default)
        if value is None:
            raise RefusedError(Code.SYSTEM_ERROR, f"the field {name} is missing")
        return value

    def number(
        self, name: str, default: int | None = None, *, minimum: int = 0, maximum: int = INT64_MAX
    ) -> int:
        text = self.command.fields.get(name)
        if text is None and default is not None:
            return default
        value = _whole(self.text(name))
        if value is None or not minimum <= value <= maximum:
            raise RefusedError(Code.SYSTEM_ERROR, f"the field {name} cannot be {text!r:.40}")
        return value

    def flag(self, name: str, *, default: bool = False) -> bool:
        """The C++ client writes 1 where Java writes true."""
        return self.command.fields.get(name, str(default)).lower() in ("true", "1")

    def json(self) -> dict[str, Any]:
        """The body, which must be a JSON object."""
        try:
            found = msgspec.json.decode(self.body)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            raise RefusedError(Code.SYSTEM_ERROR, f"the body is no JSON: {error!s:.200}") from error
        if not isinstance(found, dict):
            raise RefusedError(Code.SYSTEM_ERROR, "the body is no object of JSON")
        return found


def json_body(value: object) -> bytes:
    return msgspec.json.encode(value)


def _whole(text: str) -> int | None:
    digits = text.removeprefix("-")
    if len(digits) > 19 or not (digits.isascii() and digits.isdigit()):
        return None
    return int(text)

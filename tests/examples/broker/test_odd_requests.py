"""Every request with odd fields or body is answered; none fails the broker or grows its memory."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any, Final

import pytest

from tests.examples.broker.broker_kit import Running, running
from tests.examples.broker.remoting import SHORT_SEND, Remoting, properties_text

MEMORY_BYTES: Final = 64 << 20
IN_FLIGHT: Final = 50

_QUEUE: Final = {"topic": "Odd", "queueId": 0}
_SEND: Final = {
    "a": "producers",
    "b": "Odd",
    **SHORT_SEND,
    "i": properties_text({"TAGS": "t", "KEYS": "k", "DELAY": "0"}),
    "j": 0,
    "l": 16,
    "m": "false",
}
_PULL: Final = {
    **_QUEUE,
    "consumerGroup": "odd",
    "queueOffset": 0,
    "maxMsgNums": 32,
    "sysFlag": 5,
    "commitOffset": 0,
    "suspendTimeoutMillis": 1,
    "subscription": "a || b",
    "expressionType": "TAG",
}
_SUBSCRIPTION: Final = {"topic": "Odd", "subString": "*", "expressionType": "TAG"}
_LOCK: Final = json.dumps(
    {
        "consumerGroup": "odd",
        "clientId": "c",
        "mqSet": [{"topic": "Odd", "brokerName": "b", "queueId": 0}],
    }
).encode()
_HEARTBEAT: Final = json.dumps(
    {
        "clientID": "c",
        "consumerDataSet": [{"groupName": "odd", "subscriptionDataSet": [_SUBSCRIPTION]}],
    }
).encode()
_FILTER: Final = json.dumps({"subscriptionData": _SUBSCRIPTION, "group": "odd"}).encode()

# What clients send, by code.
REQUESTS: Final[list[tuple[int, dict[str, Any], bytes]]] = [
    (10, {"producerGroup": "p", "defaultTopicQueueNums": 4, **_QUEUE}, b"body"),
    (310, _SEND, b"body"),
    (320, {**_SEND, "m": "true"}, bytes([0, 0, 0, 23, *[0] * 15, 1, 65, 0, 0, 0])),
    (11, _PULL, b""),
    (361, _PULL, b""),
    (12, {"topic": "Odd", "key": "k", "maxNum": 3, "beginTimestamp": 0, "endTimestamp": 9}, b""),
    (14, {**_QUEUE, "consumerGroup": "odd", "setZeroIfNotFound": "true"}, b""),
    (15, {**_QUEUE, "consumerGroup": "odd", "commitOffset": 1}, b""),
    (17, {"topic": "Odd", "readQueueNums": 2, "writeQueueNums": 2, "perm": 6}, b""),
    (29, {**_QUEUE, "timestamp": 0, "boundaryType": "upper"}, b""),
    (30, _QUEUE, b""),
    (31, _QUEUE, b""),
    (32, _QUEUE, b""),
    (33, {"offset": 0, "topic": "Odd"}, b""),
    (34, {}, _HEARTBEAT),
    (35, {"clientID": "c", "consumerGroup": "odd"}, b""),
    (36, {"offset": 0, "group": "odd", "delayLevel": -1, "maxReconsumeTimes": 3}, b""),
    (38, {"consumerGroup": "odd"}, b""),
    (41, {}, _LOCK),
    (42, {}, _LOCK),
    (46, {}, _FILTER),
    (105, {"topic": "Odd"}, b""),
    (106, {}, b""),
    (206, {}, b""),
]
ODD: Final = (
    *("", " ", "-1", "0", "1", "9" * 19, "-" + "9" * 19, "9" * 5_000, "1e9", "0x10", "null"),
    *("true", "%RETRY%odd", "%DLQ%odd", "TBW102", "SCHEDULE_TOPIC_XXXX", "../../etc", "\0", "\x01"),
    *("\x02\x01", "𝄞" * 300, "Ünïcode", "a" * 4_000, "2147483648", "-9223372036854775808"),
    *("UPPER", "SQL92", "a > 5", "||", "DELAY\x01-7\x02", "DELAY\x0199999\x02", "TAGS\x01\x02"),
)
ODD_JSON: Final[tuple[Any, ...]] = (
    None,
    -1,
    2**70,
    "",
    [],
    {},
    [[]],
    True,
    1.5,
    "x" * 500,
    [None] * 300,
)


def odd(dice: random.Random) -> tuple[int, dict[str, Any], bytes]:
    """A request with some fields and some of its body removed or changed."""
    code, fields, body = dice.choice(REQUESTS)
    fields = dict(fields)
    for _ in range(dice.randint(0, 3) if fields else 0):
        name = dice.choice(list(fields) or ["topic"])
        if dice.random() < 0.2:
            fields.pop(name, None)
        else:
            fields[name] = dice.choice(ODD)
    if body[:1] == b"{" and dice.random() < 0.6:
        return code, fields, json.dumps(changed(dice, json.loads(body))).encode()
    if body and dice.random() < 0.5:
        data = bytearray(body)
        for _ in range(dice.randint(1, 4)):
            data[dice.randrange(len(data))] = dice.randrange(256)
        body = bytes(data[: dice.randint(0, len(data))])
    return code, fields, body


def changed(dice: random.Random, found: Any) -> Any:
    """The same JSON with one value changed somewhere."""
    if not isinstance(found, (dict, list)) or not found or dice.random() < 0.2:
        return dice.choice(ODD_JSON)
    if isinstance(found, list):
        at = dice.randrange(len(found))
        return [*found[:at], changed(dice, found[at]), *found[at + 1 :]]
    name = dice.choice(list(found))
    return {**found, name: changed(dice, found[name])}


def ask_odd(broker: Running, client: Remoting, count: int) -> None:
    dice = random.Random(count)
    client.create_topic("Odd", 2)
    before = broker.peak_bytes
    failed = []
    for _ in range(count // IN_FLIGHT):
        asked = [odd(dice) for _ in range(IN_FLIGHT)]
        opaque = [client.begin(code, body, **fields) for code, fields, body in asked]
        for each, request in zip(opaque, asked, strict=True):
            answer = client.end(each)
            if "see the broker's log" in (answer.remark or ""):
                failed.append((request, answer.remark))
        client.heard.clear()
    assert failed == []
    assert "Traceback" not in broker.errors()
    assert broker.peak_bytes - before < MEMORY_BYTES
    assert client.ask(106).code == 0


def test_odd_requests_are_answered(tmp_path: Path) -> None:
    with running(tmp_path, is_quiet=False) as broker, broker.client(binary=True) as client:
        ask_odd(broker, client, 2_000)


@pytest.mark.fuzz
def test_very_many_odd_requests_are_answered(tmp_path: Path) -> None:
    with running(tmp_path, is_quiet=False) as broker, broker.client(binary=True) as client:
        ask_odd(broker, client, 100_000)

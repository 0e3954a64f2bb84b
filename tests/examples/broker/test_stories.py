"""What the example broker does for clients, each story over its own connections."""

from __future__ import annotations

import json
import random
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.request
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.examples.broker.broker_kit import Running, cold_config, running
from tests.examples.broker.remoting import (
    SHORT_SEND,
    Found,
    Remoting,
    properties_text,
    read_messages,
)
from tests.examples.broker.test_frames import frames, mutated
from tests.examples.example_kit import ROOT, environment
from tests.s3.moto_server import moto_server
from tieredstore.codec import fastjson
from tieredstore.providers.s3_admin import create_bucket
from tieredstore.providers.s3_settings import ObjectStoreSettings

ORDERS = "Orders"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A broker for stories that need only their own topics and groups."""
    with running(tmp_path_factory.mktemp("broker"), is_quiet=False) as found:
        yield found


@pytest.fixture
def client(broker: Running) -> Iterator[Remoting]:
    with broker.client() as found:
        yield found


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def bodies(found: list[Found]) -> list[bytes]:
    return [message.body for message in found]


# -- messages ---------------------------------------------------------------------------------


@pytest.mark.parametrize("is_binary", [False, True])
def test_what_is_sent_is_pulled(broker: Running, is_binary: bool) -> None:
    topic = f"Sent-{is_binary}"
    with broker.client(binary=is_binary) as client:
        client.create_topic(topic, 2)
        given = {"TAGS": "red", "KEYS": "one two", "UNIQ_KEY": "U1", "имя": "значение 𝄞"}
        first = client.send(topic, 1, b"first", **given)
        client.send(topic, 1, bytes(range(256)))
        assert (first.fields["queueId"], first.fields["queueOffset"]) == ("1", "0")
        found = client.pull(topic, 1, 0)
        assert bodies(found) == [b"first", bytes(range(256))]
        assert [(each.queue_id, each.queue_offset) for each in found] == [(1, 0), (1, 1)]
        assert (found[0].topic, found[0].flag, found[0].properties) == (topic, 7, given)
        assert found[0].store_host == ("127.0.0.1", broker.port)
        assert first.fields["msgId"] == found[0].offset_id
        assert client.pull(topic, 0, 0) == []


def test_properties_are_stored_as_they_came(broker: Running, client: Remoting) -> None:
    text = "b\x012\x02a\x011\x02empty\x01\x02b\x013\x02last\x01without an end"
    fields = {"producerGroup": "p", "topic": "AsTheyCame", "queueId": 0, "properties": text}
    assert client.ask(10, b"x", **fields).code == 0
    record = client.end(client.begin_pull("AsTheyCame", 0, 0)).body
    assert record.endswith(struct.pack(">h", len(text)) + text.encode())


def test_version_1_of_a_send_names_its_fields(client: Remoting) -> None:
    answer = client.ask(
        10,
        b"body",
        producerGroup="producers",
        topic="Named",
        defaultTopic="TBW102",
        defaultTopicQueueNums=4,
        queueId=3,
        sysFlag=0,
        bornTimestamp=1,
        flag=5,
        properties=properties_text({"TAGS": "t"}),
        reconsumeTimes=0,
        unitMode="false",
        batch="false",
    )
    assert answer.code == 0, answer
    (found,) = client.pull("Named", 3, 0)
    assert (found.body, found.flag, found.properties) == (b"body", 5, {"TAGS": "t"})


def test_a_batch_is_stored_side_by_side(client: Remoting) -> None:
    messages = [(f"{number}".encode() * 9, {"KEYS": f"k{number}"}) for number in range(40)]
    answer = client.send_batch("Batches", 0, messages)
    assert answer.code == 0, answer
    found = client.pull_all("Batches", 0)
    assert [(each.body, each.properties) for each in found] == messages
    assert [each.queue_offset for each in found] == list(range(40))
    assert answer.fields["msgId"].split(",") == [each.offset_id for each in found]


def test_a_batch_that_the_cpp_client_compressed_is_stored_as_messages(client: Remoting) -> None:
    packed = b"".join(
        struct.pack(">iiiii", 22 + len(body), 0, 0, 0, len(body)) + body + b"\0\0"
        for body in (b"one", b"two")
    )
    fields = {"producerGroup": "p", "topic": "Packs", "queueId": 0, "sysFlag": 1, "batch": "1"}
    assert client.ask(10, zlib.compress(packed), **fields).code == 0
    found = client.pull("Packs", 0, 0)
    assert bodies(found) == [b"one", b"two"]
    assert [each.sys_flag & 1 for each in found] == [0, 0]
    assert client.ask(10, b"no zlib", **fields).code == 13
    assert client.ask(10, zlib.compress(bytes(17 << 20)), **fields).code == 13


@pytest.mark.parametrize(
    "body", [b"", b"\0" * 10, struct.pack(">iiiii", 22, 0, 0, 0, 2**31 - 1) + b"\0\0"]
)
def test_a_batch_that_does_not_add_up_is_refused(client: Remoting, body: bytes) -> None:
    fields = {"a": "p", "b": "Batches-2", "e": 0, "f": 0, "g": 1, "h": 0, "i": "", "m": "true"}
    assert client.ask(320, body, **fields).code == 13
    assert client.pull("Batches-2", 0, 0) == []


def test_a_one_way_message_is_stored_and_not_answered(client: Remoting) -> None:
    client.begin_send("OneWay", 0, b"said", frame_flag=2)
    found = client.pull("OneWay", 0, 0, wait_ms=20_000)
    assert bodies(found) == [b"said"]
    assert client.heard == []


def test_compressed_bodies_pass_through(client: Remoting) -> None:
    packed = zlib.compress(b"long " * 1_000)
    client.send("Packed", 0, packed, sys_flag=1)
    (found,) = client.pull("Packed", 0, 0)
    assert (found.body, found.sys_flag & 1) == (packed, 1)


def test_many_messages_in_flight_are_stored_in_the_order_they_came(client: Remoting) -> None:
    asked = [client.begin_send("Flight", 0, f"{number}".encode()) for number in range(3_000)]
    answers = [client.end(each) for each in asked]
    assert [int(each.fields["queueOffset"]) for each in answers] == list(range(3_000))
    assert bodies(client.pull_all("Flight", 0)) == [f"{number}".encode() for number in range(3_000)]


def test_what_no_message_may_be_is_refused(client: Remoting) -> None:
    def sent(topic: str, queue_id: int, body: bytes, **others: Any) -> int:
        return client.end(client.begin_send(topic, queue_id, body, **others)).code

    assert sent("Refusals", 0, b"fine") == 0
    assert sent("Refusals", 99, b"no such queue") == 1
    assert sent("../Refusals", 0, b"no topic's name") == 1
    assert sent("SCHEDULE_TOPIC_XXXX", 0, b"the broker's own") == 16
    assert sent("Refusals", 0, b"prepared", TRAN_MSG="true") == 16
    assert sent("Refusals", 0, b"prepared", sys_flag=4) == 16
    assert sent("Refusals", 0, b"") == 13
    assert sent("Refusals", 0, b"x" * (5 << 20)) == 13
    assert sent("Refusals", 0, b"x", padding="x" * 40_000) == 13
    assert sent("Refusals", 0, b"x", padding="x" * 40_000, DELAY="1") == 13
    assert sent("Refusals", 0, b"x", DELAY="soon") == 13
    assert sent("Refusals", 0, b"x", TIMER_DELAY_SEC="5 s") == 13
    assert sent("Refusals", 0, b"x", TIMER_DELAY_SEC="260000") == 13
    client.create_topic("WithoutQueues", 0)
    assert sent("WithoutQueues", -1, b"x") == 16
    assert sent("Refusals", 0, b"x", TIMER_DELIVER_MS="9" * 19) == 13
    assert bodies(client.pull("Refusals", 0, 0)) == [b"fine"]


# -- pulls ------------------------------------------------------------------------------------


def test_a_pull_that_waits_gets_a_message_when_it_comes(broker: Running, client: Remoting) -> None:
    client.create_topic("Waits", 2)
    waiting = [client.begin_pull("Waits", queue, 0, wait_ms=60_000) for queue in (0, 1)]
    with broker.client() as other:
        other.send("Waits", 1, b"for one")
        began = time.monotonic()
        answer = client.end(waiting[1])
        assert bodies(read_messages(answer.body)) == [b"for one"]
        other.send("Waits", 0, b"for the other")
        answer = client.end(waiting[0])
        assert bodies(read_messages(answer.body)) == [b"for the other"]
        assert time.monotonic() - began < 20


def test_a_pull_that_waits_passes_by_messages_with_other_tags(
    broker: Running, client: Remoting
) -> None:
    client.create_topic("WaitsForTag", 1)
    waiting = client.begin_pull("WaitsForTag", 0, 0, wait_ms=60_000, tags="red")
    with broker.client() as other:
        other.send("WaitsForTag", 0, b"blue one", TAGS="blue")
        answer = client.end(waiting)
        assert (answer.code, answer.fields["nextBeginOffset"]) == (20, "1")
        waiting = client.begin_pull("WaitsForTag", 0, 1, wait_ms=60_000, tags="red")
        other.send("WaitsForTag", 0, b"red one", TAGS="red")
        assert bodies(read_messages(client.end(waiting).body)) == [b"red one"]


def test_a_pull_waits_no_longer_than_it_says(client: Remoting) -> None:
    client.create_topic("Patience", 1)
    began = time.monotonic()
    answer = client.end(client.begin_pull("Patience", 0, 0, wait_ms=300))
    assert (answer.code, answer.fields["nextBeginOffset"]) == (19, "0")
    assert 0.3 <= time.monotonic() - began < 20


def test_hundreds_of_pulls_wait_and_hold_no_thread(broker: Running, client: Remoting) -> None:
    client.create_topic("Crowd", 400)
    waiting = [client.begin_pull("Crowd", queue, 0, wait_ms=60_000) for queue in range(400)]
    tasks = len(list(Path(f"/proc/{broker.process.pid}/task").iterdir()))
    assert tasks < 60
    with broker.client() as other:
        for queue in range(400):
            other.begin_send("Crowd", queue, f"{queue}".encode(), frame_flag=2)
        for queue, opaque in enumerate(waiting):
            assert bodies(read_messages(client.end(opaque).body)) == [f"{queue}".encode()]


def test_tags_choose_messages(client: Remoting) -> None:
    for number in range(30):
        tags = ("red", "green", "blue")[number % 3]
        client.send("Tagged", 0, f"{number}".encode(), TAGS=tags)
    client.send("Tagged", 0, b"untagged")
    found = client.pull_all("Tagged", 0, tags="red || blue")
    assert [int(each.body) for each in found] == [n for n in range(30) if n % 3 != 1]
    assert len(client.pull_all("Tagged", 0, tags="*")) == 31
    assert client.pull_all("Tagged", 0, tags="yellow") == []


def test_tags_with_equal_hashes_are_told_apart(client: Remoting) -> None:
    client.send("Hashes", 0, b"yes", TAGS="Aa")
    client.send("Hashes", 0, b"no", TAGS="BB")  # the same hash in Java
    assert bodies(client.pull_all("Hashes", 0, tags="Aa")) == [b"yes"]


def pull_by(client: Remoting, topic: str, expression: str, kind: str, sys_flag: int = 4) -> Any:
    return client.ask(
        11,
        consumerGroup="g",
        topic=topic,
        queueId=0,
        queueOffset=0,
        maxMsgNums=32,
        sysFlag=sys_flag,
        subscription=expression,
        expressionType=kind,
    )


def test_conditions_choose_messages(client: Remoting) -> None:
    for number in range(30):
        colour = ("red", "green", "blue")[number % 3]
        client.send("Conditions", 0, f"{number}".encode(), TAGS=colour, a=str(number))
    answer = pull_by(client, "Conditions", "a BETWEEN 5 AND 20 AND TAGS IN ('red')", "SQL92")
    found = [int(each.body) for each in read_messages(answer.body)]
    assert found == [6, 9, 12, 15, 18]
    answer = pull_by(client, "Conditions", "a > 50", "SQL92")
    assert (answer.code, answer.fields["nextBeginOffset"]) == (20, "30")


def test_filters_that_are_none_are_refused(client: Remoting) -> None:
    client.create_topic("Filters", 1)
    assert pull_by(client, "Filters", "a >", "SQL92").code == 23
    assert pull_by(client, "Filters", "a", "XPATH").code == 23
    assert pull_by(client, "Filters", "||", "TAG").code == 23
    assert pull_by(client, "Filters", "a" * 20_000, "TAG").code == 23
    assert pull_by(client, "Filters", "*", "TAG", sys_flag=0).code == 24  # no heartbeat said it

    def checked(expression: str) -> int:
        data = {"subscriptionData": {"subString": expression, "expressionType": "SQL92"}}
        return client.ask(46, json.dumps(data).encode()).code

    assert (checked("a > 5"), checked("a >")) == (0, 23)


def test_a_pull_from_where_there_is_nothing_says_where_to_go_on(client: Remoting) -> None:
    client.send("Far", 0, b"only one")
    answer = client.end(client.begin_pull("Far", 0, 1_000))
    assert answer.code == 21
    assert int(answer.fields["nextBeginOffset"]) in (0, 1)
    assert client.end(client.begin_pull("Never", 0, 0)).code == 17
    assert client.end(client.begin_pull("Far", 77, 0)).code == 1


# -- looking up -------------------------------------------------------------------------------


def test_messages_are_found_by_time_key_and_id(client: Remoting) -> None:
    before = now_ms()
    for number in range(20):
        client.send(
            "Looked", 0, f"{number}".encode(), KEYS=f"key-{number} all", UNIQ_KEY=f"U{number}"
        )
    found = client.pull("Looked", 0, 0)
    assert client.ask(31, topic="Looked", queueId=0).fields["offset"] == "0"
    assert client.ask(30, topic="Looked", queueId=0).fields["offset"] == "20"

    def at(timestamp: int) -> int:
        answer = client.ask(29, topic="Looked", queueId=0, timestamp=timestamp)
        return int(answer.fields["offset"])

    assert (at(before - 1_000), at(now_ms() + 10_000)) == (0, 20)
    for each in found:
        assert found[at(each.store_timestamp)].store_timestamp == each.store_timestamp
    earliest = client.ask(32, topic="Looked", queueId=0).fields["timestamp"]
    assert int(earliest) == found[0].store_timestamp

    def by_key(key: str, **others: Any) -> list[bytes]:
        times = {"beginTimestamp": 0, "endTimestamp": now_ms() + 10_000, **others}
        answer = client.ask(12, topic="Looked", key=key, maxNum=64, **times)
        return bodies(read_messages(answer.body)) if answer.code == 0 else []

    assert by_key("key-7") == [b"7"]
    answer = client.ask(12, topic="Looked", key="key-7", beginTimestamp=0, endTimestamp=2**60)
    assert int(answer.fields["indexLastUpdatePhyoffset"]) >= found[7].log_offset
    assert int(answer.fields["indexLastUpdateTimestamp"]) >= found[7].store_timestamp
    assert by_key("U11", _UNIQUE_KEY_QUERY="true") == [b"11"]
    assert sorted(map(int, by_key("all"))) == list(range(20))
    assert by_key("key-7", endTimestamp=before - 1_000) == []
    assert by_key("nobody") == []
    (seen,) = read_messages(client.ask(33, offset=found[5].log_offset).body)
    assert (seen.body, seen.offset_id) == (b"5", found[5].offset_id)
    assert client.ask(33, offset=found[5].log_offset + 1).code == 1
    assert client.ask(33, offset=2**62).code == 1


def test_where_topics_are_is_told_with_the_id_of_a_leader(
    broker: Running, client: Remoting
) -> None:
    assert client.ask(105, topic="Nowhere").code == 17
    client.create_topic("Somewhere", 3)
    route = json.loads(client.ask(105, topic="Somewhere").body)
    (data,), (queues,) = route["brokerDatas"], route["queueDatas"]
    assert data["brokerAddrs"] == {"0": f"127.0.0.1:{broker.port}"}
    assert queues["brokerName"] == data["brokerName"]
    assert (queues["readQueueNums"], queues["writeQueueNums"], queues["perm"]) == (3, 3, 6)
    default = json.loads(client.ask(105, topic="TBW102").body)
    assert default["queueDatas"][0]["perm"] == 7
    cluster = json.loads(client.ask(106).body)
    assert list(cluster["brokerAddrTable"]) == [data["brokerName"]]
    assert "Somewhere" in json.loads(client.ask(206).body)["topicList"]


# -- groups -----------------------------------------------------------------------------------


def consumers(client: Remoting, group: str) -> list[str]:
    answer = client.ask(38, consumerGroup=group)
    found: list[str] = json.loads(answer.body)["consumerIdList"] if answer.code == 0 else []
    return found


def test_consumers_of_a_group_hear_when_one_comes_or_goes(broker: Running) -> None:
    with broker.client() as first:
        first.create_topic("Shared", 4)
        first.heartbeat("one", "sharers", "Shared")
        assert first.hear(40).fields == {"consumerGroup": "sharers"}
        assert consumers(first, "sharers") == ["one"]
        with broker.client() as second:
            second.heartbeat("two", "sharers", "Shared")
            assert first.hear(40).fields == {"consumerGroup": "sharers"}
            assert consumers(first, "sharers") == consumers(second, "sharers") == ["one", "two"]
            second.heartbeat("two", "sharers", "Shared")  # nothing is new
            assert consumers(first, "sharers") == ["one", "two"]
            assert first.heard == []
        first.hear(40)  # the second one's connection has ended
        assert consumers(first, "sharers") == ["one"]
        assert first.ask(35, clientID="one", consumerGroup="sharers").code == 0
        assert consumers(first, "sharers") == []
        assert json.loads(first.ask(105, topic="%RETRY%sharers").body)["queueDatas"]


def test_groups_of_heartbeats_that_are_refused_are_not_kept(client: Remoting) -> None:
    def beat(group: str, subscriptions: int) -> int:
        data = {"groupName": group, "subscriptionDataSet": [0] * subscriptions}
        body = json.dumps({"clientID": "c", "consumerDataSet": [data]}).encode()
        return client.begin(34, body)

    for first in range(0, 2_000, 50):
        asked = [beat(f"refused-{number}", 10_001) for number in range(first, first + 50)]
        assert {client.end(each).code for each in asked} == {1}
    assert client.end(beat("welcome", 1)).code == 0


def test_a_queue_belongs_to_one_consumer_at_a_time(client: Remoting) -> None:
    def ask(code: int, who: str, *queues: int) -> list[int]:
        wanted = [{"topic": "Locks", "brokerName": "b", "queueId": queue} for queue in queues]
        data = {"consumerGroup": "lockers", "clientId": who, "mqSet": wanted}
        answer = client.ask(code, json.dumps(data).encode())
        assert answer.code == 0
        return [each["queueId"] for each in json.loads(answer.body or b"{}").get("lockOKMQSet", [])]

    assert ask(41, "one", 0, 1) == [0, 1]
    assert ask(41, "two", 1, 2) == [2]
    assert ask(41, "one", 0, 1) == [0, 1]
    ask(42, "two", 0)  # this lock is not its own
    assert ask(41, "two", 0) == []
    ask(42, "one", 0)
    assert ask(41, "two", 0, 1) == [0]


def test_a_delayed_message_comes_though_the_schedule_lost_its_end(tmp_path: Path) -> None:
    """A power cut leaves this state: the delivered offset is on disk, the queue's end is not."""
    kept = tmp_path / "store" / "config" / "delayOffset.json"
    kept.parent.mkdir(parents=True)
    kept.write_text('{"offsetTable":{1:5}}', encoding="utf-8")
    with running(tmp_path) as broker, broker.client() as client:
        client.send("Later", 0, b"delayed", DELAY="1")
        assert bodies(client.pull("Later", 0, 0, wait_ms=20_000)) == [b"delayed"]


def test_of_a_batch_all_is_stored_or_nothing(client: Remoting) -> None:
    # A message may become too large by the properties that the broker adds while it waits.
    nearly = {"DELAY": "1", "filler": "x" * (32_767 - len("DELAY_1_filler__"))}
    assert len(properties_text(nearly)) == 32_767
    client.send("Whole", 0, b"before")
    answer = client.send_batch("Whole", 0, [(b"small", {}), (b"large", nearly)])
    assert answer.code == 13, answer
    assert bodies(client.pull_all("Whole", 0)) == [b"before"]
    for theirs in ("INNER_NUM", "INNER_MULTI_DISPATCH"):  # no store accepts these from a producer
        answer = client.send_batch("Whole", 0, [(b"plain", {}), (b"odd", {theirs: "1"})])
        assert (answer.code, theirs in str(answer.remark)) == (13, True)
    assert bodies(client.pull_all("Whole", 0)) == [b"before"]


def test_names_that_would_be_kept_have_a_limit(client: Remoting) -> None:
    def lock(who: str, topic: str, broker: str) -> int:
        wanted = [{"topic": topic, "brokerName": broker, "queueId": 0}]
        data = {"consumerGroup": "lockers", "clientId": who, "mqSet": wanted}
        return client.ask(41, json.dumps(data).encode()).code

    for names in (("w" * 5_000, "T", "b"), ("w", "t" * 5_000, "b"), ("w", "T", "b" * 5_000)):
        assert lock(*names) == 1
    assert lock("w" * 500, "T", "b") == 0
    data = {"clientID": "w" * 5_000, "consumerDataSet": [{"groupName": "lockers"}]}
    assert client.ask(34, json.dumps(data).encode()).code == 1


def test_a_message_that_is_sent_back_comes_again_to_its_group(client: Remoting) -> None:
    client.heartbeat("one", "retries", "Again")
    client.send("Again", 0, b"difficult", UNIQ_KEY="UA", KEYS="k")
    (found,) = client.pull("Again", 0, 0)

    def send_back(level: int) -> int:
        fields: dict[str, Any] = {"group": "retries", "originTopic": "Again", "originMsgId": "UA"}
        return client.ask(36, offset=found.log_offset, delayLevel=level, **fields).code

    assert send_back(1) == 0
    (again,) = client.pull("%RETRY%retries", 0, 0, wait_ms=30_000)
    assert (again.body, again.reconsume_times) == (b"difficult", 1)
    assert again.properties["RETRY_TOPIC"] == "Again"
    assert again.properties["KEYS"] == "k"
    assert again.store_timestamp >= found.store_timestamp + 1_000
    assert send_back(-1) == 0
    assert bodies(client.pull("%DLQ%retries", 0, 0)) == [b"difficult"]


@pytest.mark.parametrize("asked", [{"delayLevel": 5_000}, {"delayLevel": 0}])
def test_a_message_may_be_sent_back_more_often_than_there_are_levels(
    client: Remoting, asked: dict[str, Any]
) -> None:
    fields = {**SHORT_SEND, "a": "p", "b": "Often", "j": 2_000, "m": "false"}
    assert client.ask(310, b"x", **fields).code == 0
    (found, *_) = client.pull("Often", 0, 0)
    answer = client.ask(
        36, offset=found.log_offset, group="often", maxReconsumeTimes=5_000, **asked
    )
    assert (answer.code, answer.remark) == (0, None)


def test_only_the_message_that_is_named_is_sent_back(client: Remoting) -> None:
    client.send("Named-1", 0, b"one", UNIQ_KEY="N1")
    client.send("Named-1", 0, b"two", UNIQ_KEY="N2")
    first, second = client.pull("Named-1", 0, 0)
    fields: dict[str, Any] = {"group": "named", "originTopic": "Named-1", "delayLevel": -1}
    # A record of a tier may say so: the log offset is another message's.
    assert client.ask(36, offset=first.log_offset, originMsgId="N2", **fields).code == 0
    assert bodies(client.pull("%DLQ%named", 0, 0)) == [b"two"]
    assert client.ask(36, offset=second.log_offset + 1, originMsgId="N9", **fields).code == 1


def test_delayed_messages_come_in_time(client: Remoting) -> None:
    client.create_topic("Later", 1)
    client.send("Later", 0, b"later", DELAY="1", KEYS="k")
    client.send("Later", 0, b"now")
    assert bodies(client.pull("Later", 0, 0)) == [b"now"]
    (found,) = client.pull("Later", 0, 1, wait_ms=30_000)
    assert (found.body, found.properties) == (b"later", {"KEYS": "k"})


def test_a_group_goes_on_where_it_was(client: Remoting) -> None:
    client.send("Offsets", 0, b"x")

    def offset(group: str, **others: Any) -> int:
        answer = client.ask(14, consumerGroup=group, topic="Offsets", queueId=0, **others)
        return int(answer.fields["offset"]) if answer.code == 0 else -answer.code

    assert offset("new") == 0
    assert offset("new", setZeroIfNotFound="false") == -22
    client.ask(15, consumerGroup="old", topic="Offsets", queueId=0, commitOffset=41)
    assert offset("old") == 41


def test_progress_in_a_queue_that_is_not_there_is_not_kept(client: Remoting) -> None:
    """Each is kept for ever, and there is room for only so many."""
    client.create_topic("Progress", 2)
    for topic, queue_id, code in (("Progress", 1, 0), ("Progress", 2, 1), ("NoProgress", 0, 17)):
        asked: dict[str, Any] = {"consumerGroup": "old", "topic": topic, "queueId": queue_id}
        assert client.ask(15, commitOffset=4, **asked).code == code
        assert client.ask(14, setZeroIfNotFound="false", **asked).code == (22 if code else 0)


# -- what is not served -----------------------------------------------------------------------


def test_a_topic_of_a_kind_that_is_not_kept_is_refused(client: Remoting) -> None:
    asked: dict[str, Any] = {"readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
    for wanted in ("+cleanup.policy=COMPACT", "+queue.type=BatchCQ,+message.type=NORMAL"):
        answer = client.ask(17, topic="Compacted", attributes=wanted, **asked)
        assert (answer.code, "not supported" in str(answer.remark)) == (1, True)
        assert client.ask(105, topic="Compacted").code == 17
    for wanted in ("", "+message.type=FIFO", "+cleanup.policy=DELETE,+queue.type=SimpleCQ"):
        assert client.ask(17, topic="Plain", attributes=wanted, **asked).code == 0


def test_what_is_not_known_is_answered_as_that(client: Remoting) -> None:
    for code in (999, 37, 39, -1, 400):
        answer = client.ask(code)
        assert (answer.code, answer.remark) == (3, f"request code {code} is not supported")
    client.begin(37, frame_flag=2)  # a client does not wait for a transaction's end
    assert client.ask(11).code == 1  # without any field
    assert client.ask(34, b"{").code == 1
    assert client.ask(34, b"[]").code == 1
    assert client.ask(41, b'{"consumerGroup":"g","clientId":"c","mqSet":[{}]}').code == 1
    assert client.ask(30, topic="T", queueId="9" * 5_000).code == 1


def test_a_connection_that_sends_no_frames_is_closed_and_others_go_on(
    broker: Running, client: Remoting
) -> None:
    for data in (b"GET / HTTP/1.1\r\n\r\n", struct.pack(">I", 2**31), b"\0\0\0\x05\x07\0\0\0x"):
        with broker.client() as stranger:
            stranger.socket.sendall(data)
            assert stranger.socket.recv(10) == b""
    assert client.ask(106).code == 0
    assert "its connection is closed" in broker.errors()


def test_mutated_frames_do_no_harm(broker: Running, client: Remoting) -> None:
    dice, whole = random.Random(5), frames()
    for _ in range(200):
        with broker.client() as stranger:
            stranger.socket.sendall(mutated(dice, whole))
    client.send("Harmless", 0, b"still here")
    assert bodies(client.pull("Harmless", 0, 0)) == [b"still here"]
    assert "Traceback" not in broker.errors()


@pytest.mark.parametrize("asks", ["pulls", "views", "topics"])
@pytest.mark.parametrize("read_bytes", [0, 40_000_000])
def test_a_client_that_reads_slowly_costs_little(
    tmp_path: Path, asks: str, read_bytes: int
) -> None:
    with running(tmp_path) as broker, broker.client() as client:
        for _ in range(64):
            client.send("Slow", 0, b"x" * 200_000)
        for number in range(200 if asks == "topics" else 0):
            client.create_topic(f"{number:0120d}", 1)
        found = client.pull_all("Slow", 0)
        assert len(found) == 64
        before = broker.peak_bytes
        with broker.client() as slow:
            slow.socket.settimeout(1)
            with suppress(TimeoutError):  # the broker stops reading
                for number in range(20_000):  # half a GB of answers, or more
                    if asks == "pulls":
                        slow.begin_pull("Slow", 0, number % 64)
                    elif asks == "topics":
                        slow.begin(206)
                    else:
                        slow.begin(33, offset=found[number % 64].log_offset)
            while read_bytes > 0:
                read_bytes -= len(slow.socket.recv(100_000))
            client.send("Slow", 0, b"others go on")
            assert broker.peak_bytes - before < 64 << 20


def test_more_connections_than_there_is_room_for_are_closed(tmp_path: Path) -> None:
    config = cold_config(tmp_path)
    text = config.read_text(encoding="utf-8")
    config.write_text(text + "connections = 2\n", encoding="utf-8")
    with running(tmp_path, "--config", config, is_quiet=False) as broker:
        with broker.client() as first, broker.client() as second, broker.client() as third:
            assert first.ask(106).code == second.ask(106).code == 0
            with pytest.raises(OSError):
                third.ask(106)
        with broker.client() as again:
            assert again.ask(106).code == 0


def test_connections_take_no_descriptors_from_the_store(tmp_path: Path) -> None:
    """Most systems give a process 1 024 unless it asks for more."""
    with running(tmp_path, ulimit="-S -n 100") as broker, ExitStack() as opened:
        clients = [opened.enter_context(broker.client()) for _ in range(150)]
        clients[-1].socket.settimeout(5)
        clients[-1].send("Many", 0, b"x")


# -- ends and beginnings ----------------------------------------------------------------------


def test_topics_and_offsets_survive_a_restart(tmp_path: Path) -> None:
    with running(tmp_path) as broker, broker.client() as client:
        client.create_topic("Kept", 5)
        for number in range(10):
            client.send("Kept", 2, f"{number}".encode())
        client.ask(15, consumerGroup="keepers", topic="Kept", queueId=2, commitOffset=4)
    with running(tmp_path) as broker, broker.client() as client:
        route = json.loads(client.ask(105, topic="Kept").body)
        assert route["queueDatas"][0]["writeQueueNums"] == 5
        answer = client.ask(14, consumerGroup="keepers", topic="Kept", queueId=2)
        offset = int(answer.fields["offset"])
        assert bodies(client.pull("Kept", 2, offset)) == [b"4", b"5", b"6", b"7", b"8", b"9"]
        assert client.send("Kept", 2, b"10").fields["queueOffset"] == "10"


def test_the_files_of_a_broker_of_rocketmq_are_read(tmp_path: Path) -> None:
    with running(tmp_path) as broker, broker.client() as client:
        client.create_topic("Java", 2)
        for queue_id in 0, 1:
            for _ in range(13):
                client.send("Java", queue_id, b"x")
    folder = tmp_path / "store" / "config"
    for path in folder.glob("*.bak"):
        path.unlink()
    offsets = '{\n\t"offsetTable":{"Java@javans":{0:3,1:12\n\t\t}}}'
    (folder / "consumerOffset.json").write_text(offsets, encoding="utf-8")
    topic = {"topicName": "Java", "readQueueNums": 2, "writeQueueNums": 2, "perm": 6, "order": True}
    version = {"timestamp": 4_102_444_800_000, "counter": 3}  # newer than the tier's copy
    topics = {"dataVersion": version, "topicConfigTable": {"Java": topic}}
    (folder / "topics.json").write_text(json.dumps(topics), encoding="utf-8")
    with running(tmp_path) as broker, broker.client() as client:
        answer = client.ask(14, consumerGroup="javans", topic="Java", queueId=1)
        assert answer.fields["offset"] == "12"
        assert client.ask(105, topic="Java").code == 0
        client.create_topic("Mine", 1)
        client.ask(15, consumerGroup="javans", topic="Java", queueId=0, commitOffset=5)
    kept = json.loads((folder / "topics.json").read_text(encoding="utf-8"))
    assert kept["dataVersion"]["counter"] > 3
    assert kept["topicConfigTable"]["Java"] == {
        **topic,
        "attributes": {},
        "topicSysFlag": 0,
        "topicFilterType": "SINGLE_TAG",
    }
    kept = fastjson.decode((folder / "consumerOffset.json").read_bytes())
    assert kept["offsetTable"] == {"Java@javans": {"0": 5, "1": 12}}


def test_pulls_that_wait_are_answered_when_the_broker_ends(tmp_path: Path) -> None:
    with running(tmp_path) as broker:
        client = broker.client()
        client.create_topic("Ends", 1)
        waiting = client.begin_pull("Ends", 0, 0, wait_ms=60_000)
        client.ask(106)
        ended: list[int] = []
        thread = threading.Thread(target=lambda: ended.append(client.end(waiting).code))
        thread.start()
        began = time.monotonic()
    thread.join()
    client.socket.close()
    assert ended == [19]
    assert time.monotonic() - began < 30


def test_after_a_kill_all_that_was_acknowledged_is_there(tmp_path: Path) -> None:
    acknowledged: dict[tuple[int, int], bytes] = {}
    dice = random.Random(4)
    for life in range(3):
        with running(tmp_path) as broker, broker.client() as client:
            client.create_topic("Killed", 4)
            asked = {}
            for number in range(2_000):
                queue, body = number % 4, b"%d/%d/" % (life, number) + dice.randbytes(300)
                asked[client.begin_send("Killed", queue, body)] = queue, body
            try:
                for count, (opaque, (queue, body)) in enumerate(asked.items()):
                    if count == 500 * (life + 1):
                        broker.process.kill()
                    answer = client.end(opaque)
                    assert answer.code == 0
                    acknowledged[queue, int(answer.fields["queueOffset"])] = body
            except OSError:
                pass  # the broker was killed
            broker.process.wait()
    assert len(acknowledged) >= 3_000
    with running(tmp_path) as broker, broker.client() as client:
        found = {
            (queue, each.queue_offset): each.body
            for queue in range(4)
            for each in client.pull_all("Killed", queue)
        }
    assert {place: found.get(place) for place in acknowledged} == acknowledged
    for queue in range(4):
        offsets = sorted(offset for at, offset in found if at == queue)
        assert offsets == list(range(len(offsets)))


def test_messages_whose_files_have_gone_come_from_the_tier(tmp_path: Path) -> None:
    config = cold_config(tmp_path)
    log = tmp_path / "store" / "commitlog"
    sent: list[tuple[bytes, dict[str, str]]] = []
    with running(tmp_path, "--config", config) as broker, broker.client() as client:
        client.create_topic("Cold", 1)
        dice = random.Random(2)
        until = time.monotonic() + 60
        while (log / f"{0:020d}").exists() or len(sent) < 400:
            assert time.monotonic() < until, "the tier does not take it"
            number = len(sent)
            sent.append((dice.randbytes(1_000), {"KEYS": f"k{number}", "UNIQ_KEY": f"U{number}"}))
            client.send("Cold", 0, sent[-1][0], TAGS=("a", "b")[number % 2], **sent[-1][1])

        def check(client: Remoting) -> None:
            found = client.pull_all("Cold", 0)
            assert bodies(found) == [body for body, _ in sent]
            assert [each.queue_offset for each in found] == list(range(len(sent)))
            assert found[3].properties == {"TAGS": "b", **sent[3][1]}
            tagged = client.pull_all("Cold", 0, tags="a")
            assert bodies(tagged) == [body for body, _ in sent[::2]]
            at = client.ask(29, topic="Cold", queueId=0, timestamp=found[9].store_timestamp)
            assert int(at.fields["offset"]) <= 9
            answer = client.ask(
                12, topic="Cold", key="k5", maxNum=8, beginTimestamp=0, endTimestamp=2**60
            )
            assert bodies(read_messages(answer.body)) == [sent[5][0]]
            fields: dict[str, Any] = {"group": "cold", "originTopic": "Cold", "originMsgId": "U7"}
            assert client.ask(36, offset=found[7].log_offset, delayLevel=-1, **fields).code == 0
            assert client.pull("%DLQ%cold", 0, 0)[-1].body == sent[7][0]
            # For a new group of an old queue, the client decides whether to read all of it.
            assert client.ask(14, consumerGroup="new", topic="Cold", queueId=0).code == 22

        check(client)
        broker.kill()
    assert not (log / f"{0:020d}").exists()
    with running(tmp_path, "--config", config) as broker, broker.client() as client:
        check(client)
        assert client.send("Cold", 0, b"next").fields["queueOffset"] == str(len(sent))


@pytest.mark.slow
def test_a_message_that_waits_outlives_the_file_it_is_in(tmp_path: Path) -> None:
    config = cold_config(tmp_path)
    log = tmp_path / "store" / "commitlog"
    with running(tmp_path, "--config", config) as broker, broker.client() as client:
        client.create_topic("Waiting", 1)
        until = time.monotonic() + 60
        sent = 0
        while (log / f"{0:020d}").exists() or not sent:  # until nobody needs it
            assert time.monotonic() < until
            client.send("Others", 0, b"x" * 1_000)
            sent += 1
        client.send("Waiting", 0, b"patient", DELAY="2")
        for _ in range(300):
            client.send("Others", 0, b"x" * 1_000)
        broker.kill()
    with running(tmp_path, "--config", config) as broker, broker.client() as client:
        for _ in range(300):
            client.send("Others", 0, b"x" * 1_000)
        assert bodies(client.pull("Waiting", 0, 0, wait_ms=60_000)) == [b"patient"]
        until = time.monotonic() + 60
        while len(list(log.iterdir())) > 2:  # no other file is kept for the message
            assert time.monotonic() < until


def test_messages_go_through_the_plugins_of_a_chain(tmp_path: Path) -> None:
    config = cold_config(tmp_path)
    text = config.read_text(encoding="utf-8")
    plugins = 'plugins = ["tests.examples.broker.shouting_plugin:ShoutingStore", "tiered"]\n'
    config.write_text(
        text.replace("[tieredstore]\n", f"[tieredstore]\n{plugins}"), encoding="utf-8"
    )
    with running(tmp_path, "--config", config) as broker, broker.client() as client:
        client.create_topic("Loud", 1)
        waiting = client.begin_pull("Loud", 0, 0, wait_ms=60_000)
        with broker.client() as other:
            other.send("Loud", 0, b"quiet")
        assert bodies(read_messages(client.end(waiting).body)) == [b"QUIET"]
    assert [path for path in (tmp_path / "tier").rglob("*") if path.is_file()]


def a_bucket(endpoint: str) -> ObjectStoreSettings:
    settings = ObjectStoreSettings(
        endpoint=endpoint,
        bucket="broker",
        access_key="key",
        secret_key="secret",
        region="us-east-1",
    )
    create_bucket(settings)
    return settings


@pytest.mark.s3
@pytest.mark.slow
def test_the_tier_may_be_in_a_bucket(tmp_path: Path) -> None:
    with moto_server() as (endpoint, door):
        a_bucket(endpoint)
        keys: dict[str, Any] = {
            "TIEREDSTORE_ENDPOINT": endpoint,
            "TIEREDSTORE_ACCESS_KEY": "key",
            "TIEREDSTORE_SECRET_KEY": "secret",
            "TIEREDSTORE_REGION": "us-east-1",
        }
        words = ("--store", tmp_path / "store", "--tier", "s3://broker/some/tier", "--port", 0)
        with running(tmp_path, *words, **keys) as broker, broker.client() as client:
            client.send("Bucket", 0, b"in the bucket")
        assert any(made.key.startswith(".rounds/") for made in door.made)
        with running(tmp_path, *words, **keys) as broker, broker.client() as client:
            assert bodies(client.pull("Bucket", 0, 0)) == [b"in the bucket"]


@pytest.mark.slow
def test_while_the_bucket_is_away_no_message_is_said_not_to_be_there(tmp_path: Path) -> None:
    with moto_server() as (endpoint, door):
        settings = a_bucket(endpoint)
        bucket = "".join(
            f'{name} = "{getattr(settings, name)}"\n'
            for name in ("endpoint", "bucket", "access_key", "secret_key", "region")
        )
        config = cold_config(tmp_path)
        place = f'provider = "posix"\npath = "{tmp_path}/tier"\n'
        text = config.read_text(encoding="utf-8")
        assert place in text
        text = text.replace(place, f'provider = "s3"\nprefix = "some/tier"\n{bucket}')
        config.write_text(text, encoding="utf-8")
        log = tmp_path / "store" / "commitlog"
        with (
            running(tmp_path, "--config", config, is_quiet=False) as broker,
            broker.client() as client,
        ):
            client.send("Away", 0, b"old", KEYS="key", UNIQ_KEY="its-id")
            until = time.monotonic() + 60
            while (log / f"{0:020d}").exists():
                assert time.monotonic() < until
                client.send("Away", 0, b"x" * 1_000)

            def asked() -> tuple[int, int]:
                by_key = client.ask(12, topic="Away", key="key", maxNum=1)
                back = client.ask(
                    36, group="g", offset=0, originTopic="Away", originMsgId="its-id", delayLevel=0
                )
                return by_key.code, back.code

            with door.breaking("503", rate=1.0):
                assert asked() == (2, 2)
            assert asked() == (0, 0)


# -- settings ---------------------------------------------------------------------------------


def test_a_broker_conf_is_enough(tmp_path: Path) -> None:
    config = tmp_path / "broker.conf"
    config.write_text(
        f"brokerName=conf\nstorePathRootDir={tmp_path}/store\nlistenPort=0\nbrokerIP1=127.0.0.1\n"
        "autoCreateTopicEnable=false\nmessageStorePlugIn="
        "org.apache.rocketmq.tieredstore.TieredMessageStore\ntieredBackendServiceProvider="
        f"org.apache.rocketmq.tieredstore.provider.PosixFileSegment\n"
        f"tieredStoreFilePath={tmp_path}/tier\n",
        encoding="utf-8",
    )
    with running(tmp_path, "--config", config) as broker, broker.client() as client:
        assert client.end(client.begin_send(ORDERS, 0, b"no topic")).code == 17
        client.create_topic(ORDERS, 1)
        client.send(ORDERS, 0, b"in the tier")
    assert [path for path in (tmp_path / "tier").rglob("*") if path.is_file()]
    assert "conf" in {path.name for path in (tmp_path / "tier").rglob("*")}


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--tier", "ftp://x"), "tier: 'ftp://x' is neither"),
        (("--host", "0.0.0.0"), "no client can reach"),
        (("--host", "::1"), "is no IPv4 address"),
        (("--port", "70000"), "port: 70000 is none"),
    ],
)
def test_settings_that_cannot_be_are_told(
    tmp_path: Path, words: tuple[str, str], reason: str
) -> None:
    with (
        pytest.raises(AssertionError, match=reason),
        running(tmp_path, "--store", tmp_path / "store", *words),
    ):
        pass


@pytest.mark.slow
def test_the_example_tells_its_story() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "examples.broker", "--story"],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "4,000 messages from the start" in done.stdout
    assert "that were acknowledged are there" in done.stdout
    assert "100 more follow where each queue had ended" in done.stdout


def test_a_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "store" / "config"
    folder.mkdir(parents=True)
    (folder / "topics.json").write_text('{"topicConfigTable": [', encoding="utf-8")
    with pytest.raises(AssertionError, match="topics.json: cannot be used"), running(tmp_path):
        pass


def test_a_port_that_is_taken_is_told(tmp_path: Path) -> None:
    with running(tmp_path / "first") as broker:
        words = ("--store", tmp_path / "second", "--port", broker.port)
        with (
            pytest.raises(AssertionError, match="address already in use"),
            running(tmp_path / "second", *words),
        ):
            pass


def test_metrics_of_the_store_and_of_the_broker_are_shown(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ("--store", tmp_path / "store", "--port", 0, "--metrics-port", port)
    with running(tmp_path, *words) as broker, broker.client() as client:
        client.send("Measured", 0, b"x")
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            shown = answer.read().decode()
    assert 'broker_requests_total{answer="SUCCESS",request="SEND_MESSAGE_V2"} 1.0' in shown
    assert "broker_connections 1.0" in shown
    assert "rocketmq_" in shown


def test_a_client_that_says_nothing_is_let_go(tmp_path: Path) -> None:
    config = cold_config(tmp_path)
    text = config.read_text(encoding="utf-8")
    config.write_text(text + "idle_seconds = 0.5\n", encoding="utf-8")
    with running(tmp_path, "--config", config) as broker, broker.client() as client:
        assert client.ask(106).code == 0
        with pytest.raises(OSError):
            client.hear(40)

"""Java's rows and answers beside ours."""

from __future__ import annotations

from collections import Counter

from tests.codec.golden_files import Subscription
from tests.interop.local_stores import Known, Row, digest
from tests.local.index_kit import ask_like_java
from tieredstore.codec.message import decode_message
from tieredstore.local.index_service import IndexService
from tieredstore.local.store import LocalMessageStore
from tieredstore.model.values import INT64_MAX, Boundary, GetStatus


def check_messages(rows: list[Row], known: dict[int, Known]) -> None:
    """Check that Java found no problem, and exactly these messages."""
    assert [row for row in rows if row["kind"] == "problem"] == []
    assert rows[0] == {**rows[0], "kind": "open", "load": True}
    assert rows[-1]["problems"] == 0
    said = {row["physicalOffset"]: row for row in rows if row["kind"] == "message"}
    assert sorted(said) == sorted(known)
    for log_offset, one in known.items():
        row, selected = said[log_offset], one.selected
        assert row["sha256"] == digest([selected.record])
        assert (row["topic"], row["queueId"]) == (one.topic, one.queue_id)
        assert row["queueOffset"] == selected.queue_offset
        assert row["tagsCode"] == selected.tags_code
        assert row["inConsumeQueue"] == one.in_queue
        if one.in_queue:
            assert row["unitTagsCode"] == selected.tags_code
        message = decode_message(selected.record)
        assert (row["uniqKey"] or None) == message.unique_key
        assert [key for key in (row["keys"] or "").split(" ") if key] == list(message.keys)
        assert row["tags"] == message.tags


def check_queues(rows: list[Row], store: LocalMessageStore) -> None:
    said = {(row["topic"], row["queueId"]): row for row in rows if row["kind"] == "queue"}
    for key in store.queues():
        assert said[key]["maxOffset"] == store.max_offset(*key)
        assert said[key]["minOffset"] == store.min_offset(*key), key
        assert said[key]["maxPhysicOffset"] == _last_log_end(store, *key)


def _last_log_end(store: LocalMessageStore, topic: str, queue_id: int) -> int:
    queue = store._loaded().queues.queue(topic, queue_id)
    assert queue is not None
    return queue.last_log_end


def check_answers(rows: list[Row], store: LocalMessageStore, index: IndexService) -> Counter[str]:
    """Check that Java's answers are ours; return how many there were of each kind."""
    counts: Counter[str] = Counter()
    for row in rows:
        if row["kind"] != "answer":
            continue
        query, result = row["query"], row["result"]
        counts[query["op"]] += 1
        if query["op"] == "queryOffset":
            _check_offsets(query, result, index)
        elif query["op"] == "queryMessage":
            _check_query(query, result, store)
        elif query["op"] == "getMessage":
            _check_get(query, result, store)
        elif query["op"] == "lookMessage":
            _check_look(query, result, store)
        else:
            _check_number(query, result, store)
    return counts


def _check_get(query: Row, result: Row, store: LocalMessageStore) -> None:
    got = store.get_message(
        query["topic"],
        query["queueId"],
        query["offset"],
        count_max=query["maxMsgNums"],
        bytes_max=query.get("maxTotalMsgSize", 128 * 1024 * 1024),
        message_filter=Subscription(query["tags"]) if "tags" in query else None,
    )
    assert (got.status.name, got.next_offset, got.min_offset, got.max_offset) == (
        result["status"],
        result["nextBeginOffset"],
        result["minOffset"],
        result["maxOffset"],
    ), query
    assert [one.queue_offset for one in got.messages] == result["queueOffsets"], query
    assert [one.log_offset for one in got.messages] == result["physicalOffsets"]
    if got.status is GetStatus.FOUND:
        assert digest([one.record for one in got.messages]) == result["sha256"]


def _check_look(query: Row, result: Row, store: LocalMessageStore) -> None:
    selected = store.message_at(query["physicalOffset"])
    assert selected is not None
    assert result["found"]
    message = decode_message(selected.record)
    assert (result["topic"], result["queueId"]) == (message.topic, message.queue_id)
    assert (result["msgId"], result["queueOffset"]) == (message.offset_id, message.queue_offset)


def _check_number(query: Row, result: Row, store: LocalMessageStore) -> None:
    """Java says 0 or -1 where we say None."""
    place = query["topic"], query["queueId"]
    if query["op"] == "offsetByTime":
        boundary = Boundary[query["boundary"]]
        ours: object = store.offset_by_time(*place, query["timestamp"], boundary) or 0
    elif query["op"] == "storeTimestamp":
        time = store.store_time(*place, query["offset"])
        ours = -1 if time is None else time
    elif query["op"] == "earliestTime":
        time = store.earliest_time(*place)
        ours = -1 if time is None else time
    elif query["op"] in ("minOffset", "maxOffset"):
        ours = (store.min_offset if query["op"] == "minOffset" else store.max_offset)(*place) or 0
        result = {"offset": max(0, result["offset"])}
    else:
        there = store.contains(*place, query["offset"])
        if not there:  # Java reads a missing unit as offset 0, and "has" it
            return
        if query["op"] == "inStore":
            ours = there
        else:
            got = store.get_message(*place, query["offset"], count_max=1)
            ours = got.messages[0].log_offset
    assert [ours] == list(result.values()), query


def _check_offsets(query: Row, result: Row, index: IndexService) -> None:
    ours = ask_like_java(
        index,
        query["topic"],
        query["key"],
        count_max=query["maxNum"],
        begin=query["begin"],
        end=query["end"],
    )
    assert ours == result["phyOffsets"], query


def _check_query(query: Row, result: Row, store: LocalMessageStore) -> None:
    """Without an end, ours is what a Java client keeps of Java's answer, or begins with that. With
    an end, ours has all of it that was stored by then."""
    kept, within = [], set[int]()
    for one in result["messages"]:
        selected = store.message_at(one["physicalOffset"])
        assert selected is not None
        assert digest([selected.record]) == one["sha256"]
        message = decode_message(selected.record)
        has_key = query["key"] in message.keys or query["key"] == message.unique_key
        if message.topic == query["topic"] and has_key:
            kept.append(one["physicalOffset"])
            if message.store_timestamp <= query["end"]:
                within.add(one["physicalOffset"])
    # Java's whole seconds let through messages stored later within the last second.
    got = store.query_message(
        query["topic"],
        query["key"],
        count_max=query["maxNum"],
        begin=query["begin"],
        end=query["end"],
    )
    ours = [one.log_offset for one in got.messages]
    assert got.complete
    if query["end"] == INT64_MAX:
        newest = sorted(set(kept), reverse=True)
        if len(result["messages"]) < query["maxNum"]:
            assert ours == newest, query
        else:  # hash collisions and duplicates took places in Java's answer
            assert ours[: len(newest)] == newest, query
    elif len(ours) < query["maxNum"]:
        assert within <= {*ours}, query

"""How a stored message is shown: as an object for JSON, as a line for people.

What lives here: the fields and their order, which other tools rely on, and `MessagePrinter`.
"""

from __future__ import annotations

import base64
import hashlib
from typing import Any

from tieredstore.cli.output import Columns, printable, write_json, write_line
from tieredstore.cli.times import shown_time
from tieredstore.codec.message import decode_message
from tieredstore.codec.properties import KEYS
from tieredstore.model.messages import SelectedMessage
from tieredstore.model.values import QueueKey

Row = dict[str, Any]


def message_row(
    selected: SelectedMessage, *, key: QueueKey | None = None, body: bool = False
) -> Row:
    """A message as an object. `key` is the queue that names it, its own if not given.

    `keys` is the property as it is, with its blanks. Where there is none it is null, and where a
    message has no properties at all it is empty: that is how RocketMQ hands it to its index.
    `body_sha256` and `body` are of the body as it is stored, which may be compressed.
    """
    record = selected.record
    message = decode_message(record, check_crc=False)
    topic, queue_id = key or (message.topic, message.queue_id)
    row: Row = {
        "topic": topic,
        "queue_id": queue_id,
        "queue_offset": selected.queue_offset,
        "log_offset": selected.log_offset,
        "size": len(record),
        "store_timestamp": message.store_timestamp,
        "born_timestamp": message.born_timestamp,
        "tags_code": selected.tags_code,
        "tags": message.tags,
        "keys": message.properties.get(KEYS, None if message.property_bytes else ""),
        "unique_key": message.unique_key,
        "properties": dict(message.properties),
        "sha256": hashlib.sha256(record).hexdigest(),
        "body_sha256": hashlib.sha256(message.body).hexdigest(),
    }
    if body:
        row["body"] = base64.b64encode(message.body).decode("ascii")
    return row


COLUMNS = ("log offset", "topic/queue/offset", "size", "stored", "tags", "keys")
WIDTHS = (12, 34, 7, 24, 12, 0)


def message_cells(row: Row) -> tuple[str, ...]:
    """The same for people, in `COLUMNS`."""
    place = f"{row['topic']}/{row['queue_id']}/{row['queue_offset']}"
    keys = " ".join(filter(None, (row["unique_key"], row["keys"])))
    stored = shown_time(row["store_timestamp"])
    return str(row["log_offset"]), place, str(row["size"]), stored, row["tags"] or "-", keys or "-"


def body_text(row: Row) -> str:
    """The body for people; what is no UTF-8 is shown by number."""
    return base64.b64decode(row["body"]).decode("utf-8", "backslashreplace")


class MessagePrinter:
    """Messages one after the other."""

    def __init__(self, *, json: bool, body: bool) -> None:
        self._json = json
        self._body = body
        self._columns = Columns(COLUMNS, WIDTHS)

    def write(self, key: QueueKey | None, message: SelectedMessage) -> None:
        row = message_row(message, key=key, body=self._body)
        if self._json:
            write_json(row)
            return
        self._columns.write(message_cells(row))
        if self._body:
            write_line("    " + printable(body_text(row)))

"""How a stored message is shown: as an object for JSON, as a line for people.

What lives here: the fields and their order, which other tools rely on, and `MessagePrinter`.
"""

from __future__ import annotations

import base64
import hashlib
from typing import Any

from tieredstore.cli.failures import CommandError, ExitCode
from tieredstore.cli.output import Columns, printable, write_json, write_line
from tieredstore.cli.times import shown_time
from tieredstore.codec.message import decode_message
from tieredstore.codec.record import KEYS
from tieredstore.model.errors import BodyNotPlainError
from tieredstore.model.messages import SelectedMessage
from tieredstore.model.values import QueueKey

Row = dict[str, Any]


def message_row(
    selected: SelectedMessage,
    *,
    key: QueueKey | None = None,
    body: bool = False,
    plain: bool = False,
) -> Row:
    """A message as an object. `key` is the queue that names it, its own if not given.

    `keys` is the property as it is, with its blanks. Where there is none it is null, and where a
    message has no properties at all it is empty: that is how RocketMQ hands it to its index.
    `body_sha256` and `body` are of the body as it is stored, which may be compressed. `body_plain`
    is it as its producer made it; where that cannot be, it is null and `body_problem` says why.
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
    if plain:
        try:
            row["body_plain"] = base64.b64encode(message.body_decompressed()).decode("ascii")
        except BodyNotPlainError as error:
            row |= {"body_plain": None, "body_problem": str(error)}
    return row


COLUMNS = ("log offset", "topic/queue/offset", "size", "stored", "tags", "keys")
WIDTHS = (12, 34, 7, 24, 12, 0)


def message_cells(row: Row) -> tuple[str, ...]:
    """The same for people, in `COLUMNS`."""
    place = f"{row['topic']}/{row['queue_id']}/{row['queue_offset']}"
    keys = " ".join(filter(None, (row["unique_key"], row["keys"])))
    stored = shown_time(row["store_timestamp"])
    return str(row["log_offset"]), place, str(row["size"]), stored, row["tags"] or "-", keys or "-"


def body_text(text: str) -> str:
    """A body for people, from base64; what is no UTF-8 is shown by number."""
    return base64.b64decode(text).decode("utf-8", "backslashreplace")


class MessagePrinter:
    """Messages one after the other."""

    def __init__(self, *, json: bool, body: bool, plain: bool = False) -> None:
        self._json = json
        self._body = body
        self._plain = plain
        self._columns = Columns(COLUMNS, WIDTHS)
        self._not_plain = ""  # the first of them
        self._not_plain_count = 0

    def write(self, key: QueueKey | None, message: SelectedMessage) -> None:
        row = message_row(message, key=key, body=self._body, plain=self._plain)
        problem = row.get("body_problem")
        if problem is not None:
            self._not_plain_count += 1
            place = f"{row['topic']}/{row['queue_id']}/{row['queue_offset']}"
            self._not_plain = self._not_plain or f"{place}: {problem}"
        if self._json:
            write_json(row)
            return
        self._columns.write(message_cells(row))
        shown = row.get("body_plain") if self._plain else row.get("body")
        if problem is not None:
            write_line(f"    ({problem})")
        elif shown is not None:
            write_line("    " + printable(body_text(shown)))

    def tell(self) -> None:
        """At the end: raise for bodies that could not be made plain."""
        if self._not_plain_count:
            raise CommandError(
                f"{self._not_plain_count} bodies could not be made plain, the first of"
                f" {printable(self._not_plain)}; the messages themselves are sound",
                ExitCode.DAMAGE,
            )

"""Topics that were deleted while records of them are still in the log.

What lives here: `DeletedTopics` and its file, `config/tieredstore-deleted.json`. The queues of a
topic go at once, its records only with the files of the log. Without a word about it a recovery
would bring the queues back, and where the topic has been made anew, number its first messages like
old ones: they would pass for known and be lost.

    {"version": 1, "topics": {"TopicTest": 73400}, "crc32": "…"}

The number is where the log ended when the topic was deleted.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from tieredstore.local.files.side_file import read_document, write_document
from tieredstore.model.errors import MetadataError

DELETED_FILE: Final = "tieredstore-deleted.json"
_NAMES: Final = ("version", "topics")
_VERSION: Final = 1


class DeletedTopics:
    """For each deleted topic the log offset below which its records do not count.

    * An entry is durable before the first directory goes, so no crash can bring the topic back.
    * Entries go when the log begins behind them. They never lie behind the end of the log: a
      power cut may have taken the records they spoke of, and the next ones stand there then.
    * One thread changes it at a time; any may ask.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._ends: dict[str, int] = {}

    def load(self) -> None:
        """Read the file. MetadataError where it is damaged: topics must not come back unnoticed."""
        try:
            self._ends = _decode(read_document(self._path, names=_NAMES))
        except FileNotFoundError:
            self._ends = {}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            reason = "damaged; without it deleted topics would come back"
            raise MetadataError(str(self._path), reason) from error

    def mark(self, topics: Iterable[str], log_end: int) -> None:
        """These topics end here; durable on return."""
        self._store(self._ends | dict.fromkeys(topics, log_end))

    def settle(self, *, log_min: int, log_end: int) -> None:
        """Forget what the log has no record of any more."""
        ends = {topic: min(end, log_end) for topic, end in self._ends.items()}
        self._store({topic: end for topic, end in ends.items() if end > log_min})

    def end_of(self, topic: str) -> int:
        """Records of the topic below this log offset do not count; 0 if it was not deleted."""
        return self._ends.get(topic, 0)

    def __contains__(self, topic: object) -> bool:
        return topic in self._ends

    def _store(self, ends: dict[str, int]) -> None:
        if ends == self._ends:
            return
        write_document(self._path, {"version": _VERSION, "topics": dict(sorted(ends.items()))})
        self._ends = ends


def _decode(document: Any) -> dict[str, int]:
    if document["version"] != _VERSION:
        raise ValueError(f"version {document['version']}")
    ends: dict[str, int] = {}
    for topic, end in document["topics"].items():
        if type(end) is not int or end < 0:
            raise ValueError(f"{end!r} is no log offset")
        ends[topic] = end
    return ends

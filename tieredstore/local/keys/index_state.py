"""What is known to be durable of the key index: a small file that Java never looks at.

What lives here: `IndexState` and its JSON. What follows from it is `index_service`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tieredstore.driver.durable import make_directories, write_atomically
from tieredstore.local.files.side_file import parsed
from tieredstore.local.keys.index_cut import IndexCut
from tieredstore.local.keys.index_file import IndexFile
from tieredstore.model.printable import log_of

log = log_of(__name__)

STATE_FILE: Final = "tieredstore-index.json"
_VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexState:
    """One moment at which everything named here was on disk.

    `replay_from` is the log offset of the last message that had been looked at; all keys of the
    messages below it, and perhaps its own, are among the items counted in `files`.
    """

    replay_from: int
    files: dict[str, IndexCut] = field(default_factory=dict)

    @property
    def newest(self) -> str:
        """The name of the newest file; empty if there was none."""
        return max(self.files, default="")

    @classmethod
    def of(
        cls, indexed_to: int, files: Iterable[IndexFile], cuts: Mapping[str, IndexCut] | None = None
    ) -> IndexState:
        """What these files hold now, or where `cuts` names one, what it is going to hold."""
        counts = {
            file.name: IndexCut(
                item_count=file.header.item_count, end_timestamp=file.header.end_timestamp
            )
            for file in files
            if file.header.item_count > 0
        }
        return cls(replay_from=indexed_to, files=counts | dict(cuts or {}))

    def save(self, path: Path) -> None:
        make_directories(path.parent)
        files = {
            name: {"items": cut.item_count, "endTimestamp": cut.end_timestamp}
            for name, cut in self.files.items()
        }
        document = {"version": _VERSION, "replayFrom": self.replay_from, "files": files}
        write_atomically(path, [json.dumps(document, indent=1).encode("ascii")])

    @classmethod
    def load(cls, path: Path) -> IndexState | None:
        """The last state saved; None if there is none or it cannot be read.

        Nothing is lost then: the files that nothing proves durable are made again from the log.
        """
        try:
            return _parse(parsed(path.read_bytes()))
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            log.warning("%s: not readable, so the index proves less: %s", path, error)
            return None


def _parse(document: Any) -> IndexState:
    if document["version"] != _VERSION:
        raise ValueError(f"version {document['version']}")
    files = {
        name: IndexCut(item_count=_whole(row["items"]), end_timestamp=_whole(row["endTimestamp"]))
        for name, row in document["files"].items()
    }
    return IndexState(replay_from=_whole(document["replayFrom"]), files=files)


def _whole(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is not a count")
    return value

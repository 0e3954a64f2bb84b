"""How much memory it takes to open a store of many sparse files.

Such a store takes almost no disk, and is opened in its own process. Prints the anonymous memory in
bytes after the imports and after opening:

    python -m bench._sparse_store DIRECTORY [LOG_FILES]
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tieredstore.codec.message import encode_blank
from tieredstore.codec.names import local_file_name
from tieredstore.driver.runtime import Runtime
from tieredstore.local.config import LocalConfig
from tieredstore.local.store import LocalMessageStore
from tieredstore.model.config import GIB
from tieredstore.model.messages import Message

LOG_FILES = 100
MESSAGES = 1_000


def make(root: Path, log_files: int) -> None:
    """Make files of the usual size; each log file but the last is one blank record of that size."""
    folder = root / "commitlog"
    folder.mkdir(parents=True)
    for number in range(log_files - 1):
        with (folder / local_file_name(number * GIB)).open("wb") as file:
            file.truncate(GIB)
            file.write(encode_blank(GIB)[:8])
    with Runtime.inline() as runtime:
        store = opened(root, runtime)
        messages = [
            Message(
                topic="TopicTest", queue_id=number % 8, body=bytes(300), properties={"KEYS": "a b"}
            )
            for number in range(MESSAGES)
        ]
        assert store.put_messages(messages).all_ok
        assert store.put_message(messages[0]).log_offset >= (log_files - 1) * GIB
        store.shutdown()


def opened(root: Path, runtime: Runtime) -> LocalMessageStore:
    store = LocalMessageStore(LocalConfig(store_path=str(root)), runtime)
    store.load()
    store.start()
    return store


def anonymous_bytes() -> int:
    """RssAnon: the memory that a process has for itself, without pages of mapped files."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/self/status: no RssAnon")


def open_here(root: Path) -> dict[str, int]:
    with Runtime.threads() as runtime:
        before = anonymous_bytes()
        store = opened(root, runtime)
        count = len(store.get_message("TopicTest", 3, 0).messages)
        found = len(store.query_message("TopicTest", "b").messages)
        after = anonymous_bytes()
        store.shutdown()
    return {"after_imports": before, "after_opening": after, "read": count, "found": found}


def open_in_child(root: Path) -> dict[str, int]:
    """The figures of a fresh process that opens the store."""
    command = [sys.executable, "-m", "bench._sparse_store", "--open", str(root)]
    done = subprocess.run(command, capture_output=True, check=True, text=True, timeout=120)
    figures: dict[str, int] = json.loads(done.stdout)
    return figures


def main(arguments: list[str]) -> int:
    if arguments[0] == "--open":
        print(json.dumps(open_here(Path(arguments[1]))))
        return 0
    root = Path(arguments[0])
    make(root, int(arguments[1]) if len(arguments) > 1 else LOG_FILES)
    print(json.dumps(open_in_child(root)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

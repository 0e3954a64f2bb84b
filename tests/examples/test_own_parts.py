"""The examples' provider, metadata store and message store keep their contracts."""

from __future__ import annotations

import ast
import random
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.every_step import every_step
from tests.examples.example_kit import EXAMPLES, environment
from tieredstore import (
    BackendError,
    FileSegment,
    Message,
    MessageStore,
    MetadataStore,
    Runtime,
    SegmentCorruptError,
    SegmentProvider,
    SegmentType,
    StoreConfig,
    TieredMessageStore,
)
from tieredstore.local import LocalConfig, LocalMessageStore
from tieredstore.testing.disk import ForgetfulDisk
from tieredstore.testing.message_store_contract import MessageStoreContract
from tieredstore.testing.metadata_contract import MetadataStoreContract
from tieredstore.testing.provider_contract import SegmentProviderContract
from tieredstore.testing.segment_contract import FileSegmentContract


@pytest.fixture(autouse=True)
def beside_the_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)


def own(module: str, name: str) -> Any:
    """A class of an example, imported like a user's own module."""
    return getattr(__import__(module), name)


class TestSqliteProvider(SegmentProviderContract):
    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        self.path = str(tmp_path / "tier.db")

    def open_provider(self, runtime: Runtime) -> SegmentProvider:
        provider: SegmentProvider = own("own_provider", "SqliteProvider")(runtime, self.path)
        return provider


@pytest.mark.slow
class TestSqliteSegment(FileSegmentContract):
    machine_examples = 5

    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        self.provider = own("own_provider", "SqliteProvider")(
            Runtime.inline(), str(tmp_path / "tier.db")
        )

    def open_segment(self, path: str) -> FileSegment:
        segment: FileSegment = self.provider.open(path, SegmentType.COMMIT_LOG, 0)
        return segment


class TestFileStore(MessageStoreContract):
    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        self.path = tmp_path / "messages.log"

    def open_store(self) -> MessageStore:
        store: MessageStore = own("wrap_your_store", "FileStore")(self.path)
        return store


def big(number: int) -> Message:
    return Message(topic="t", queue_id=0, body=b"%d" % number * 6_000)


def bodies(path: Path) -> list[bytes]:
    store = own("wrap_your_store", "FileStore")(path)
    store.load()
    found = [one.body for one in store.get_message("t", 0, 0, count_max=32).messages]
    store.shutdown()
    return found


def test_no_power_cut_takes_what_the_file_store_has_confirmed(tmp_path: Path) -> None:
    dice = random.Random(1)

    def script(step: int) -> bool:
        folder, confirmed = tmp_path / f"{step}", []
        folder.mkdir()
        store = own("wrap_your_store", "FileStore")(folder / "messages.log")
        with ForgetfulDisk(folder, stop_at=step + 1) as disk:
            store.load()
            for number in range(3):
                assert store.put_message(big(number)).stored
                confirmed.append(big(number).body)
        for cut in range(10):
            left = disk.cut(tmp_path / f"{step}-{cut}", dice, pieces=(512, 4_096))
            found = bodies(left / "messages.log")
            assert found[: len(confirmed)] == confirmed
            assert len(found) <= len(confirmed) + 1
        store.shutdown()
        return disk.died

    assert every_step(script) > 3


def test_a_write_that_failed_costs_the_file_store_no_other_message(tmp_path: Path) -> None:
    store = own("wrap_your_store", "FileStore")(tmp_path / "messages.log")
    store.load()
    confirmed = [big(0).body] if store.put_message(big(0)).stored else []
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8_000, limit[1]))
    try:
        assert not store.put_message(big(1)).stored
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    for number in (2, 3):
        confirmed += [big(number).body] if store.put_message(big(number)).stored else []
    store.shutdown()
    assert bodies(tmp_path / "messages.log") == confirmed
    store.load()
    assert store.put_message(big(4)).stored
    store.shutdown()


def test_a_sync_that_failed_costs_the_file_store_no_other_message(tmp_path: Path) -> None:
    """The system takes for written what it could not write; only another write mends that."""
    folder, dice = tmp_path / "store", random.Random(1)
    folder.mkdir()
    path = folder / "messages.log"
    with ForgetfulDisk(folder, error=True) as disk:
        store = own("wrap_your_store", "FileStore")(path)
        store.load()
        assert store.put_message(big(0)).stored
        disk.stop_at = disk.steps + 2
        assert not store.put_message(big(1)).stored
        assert disk.failed == "fsync"
        store.shutdown()
        confirmed = bodies(path)
        store.load()
        assert store.put_message(big(2)).stored
        confirmed.append(big(2).body)
    for cut in range(10):
        assert bodies(disk.cut(tmp_path / f"{cut}", dice) / path.name) == confirmed
    store.shutdown()


def test_a_damaged_record_of_the_file_store_takes_none_behind_it(tmp_path: Path) -> None:
    store = own("wrap_your_store", "FileStore")(tmp_path / "messages.log")
    store.load()
    for number in range(3):
        store.put_message(big(number))
    store.shutdown()
    data = bytearray((tmp_path / "messages.log").read_bytes())
    data[data.index(b"1" * 100)] ^= 1
    (tmp_path / "messages.log").write_bytes(data)
    with pytest.raises(SegmentCorruptError):
        bodies(tmp_path / "messages.log")
    assert (tmp_path / "messages.log").read_bytes() == data


class TestATierAroundFileStore(MessageStoreContract):
    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        self.path = tmp_path

    def open_store(self) -> MessageStore:
        config = StoreConfig(
            provider="posix", path=str(self.path / "tier"), store_path=str(self.path / "local")
        )
        own_store = own("wrap_your_store", "FileStore")(self.path / "messages.log")
        return TieredMessageStore(own_store, config, runtime=Runtime.inline())


class TestSqliteMetadataStore(MetadataStoreContract):
    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        self.path = str(tmp_path / "catalogue.db")

    def open_store(self) -> MetadataStore:
        store: MetadataStore = own("own_metadata_store", "SqliteMetadataStore").open(self.path)
        return store

    def open_reader(self) -> MetadataStore:
        store: MetadataStore = own("own_metadata_store", "SqliteMetadataStore").open(
            self.path, read_only=True
        )
        return store


BROKER = """
import sys
from pathlib import Path
from tieredstore import Message, Runtime, StoreConfig, TieredMessageStore, TieredReader
from tieredstore.local import LocalConfig, LocalMessageStore

folder = sys.argv[1]
config = StoreConfig(
    provider="own_provider:SqliteProvider",
    path=f"{folder}/tier.db",
    metadata="own_metadata_store:SqliteMetadataStore",
    metadata_path=f"{folder}/catalogue.db",
    store_path=folder,
    index_slot_count=100,
    index_item_count=1_000,
)
local = LocalMessageStore(LocalConfig(store_path=f"{folder}/local"), Runtime.threads())
with TieredMessageStore(local, config) as store:
    for number in range(50):
        keys = {"KEYS": f"key-{number}"}
        store.put_message(Message(topic="orders", queue_id=0, body=b"hello", properties=keys))
    assert store.flush(seal=True)
with TieredReader.open(config) as reader:
    assert len(list(reader.messages("orders"))) == 50
    assert len(reader.query_message("orders", "key-7").messages) == 1
print(sorted(path.name for path in Path(folder).glob("*.db")))
"""


def test_a_file_of_another_kind_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "tier.db").write_bytes(b"no database" * 1_000)
    runtime = Runtime.inline()
    provider = own("own_provider", "SqliteProvider")(runtime, str(tmp_path / "tier.db"))
    with pytest.raises(BackendError, match="not a database"):
        list(provider.list())


def test_an_offload_says_what_it_could_not_upload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two stores for one tier: the second one has other messages at the same offsets."""
    module = __import__("offload_to_s3")
    config = StoreConfig(
        broker_name="offload-example",
        provider="posix",
        path=str(tmp_path / "tier"),
        store_path=str(tmp_path / "catalogue"),
    )

    def files(name: str) -> LocalConfig:
        return LocalConfig(store_path=str(tmp_path / name), commit_log_file_bytes=1 << 16)

    with Runtime.threads() as runtime:
        other = LocalMessageStore(files("b"), runtime)
        other.load()
        other.start()
        for number in range(10):
            other.put_message(Message(topic="orders", queue_id=0, body=b"%d" % number))
        other.shutdown()
    assert module.offload(config, files("a"), put=20)
    assert not module.offload(config, files("b"))
    assert "orders/0: not all of it: the local store and the tier" in capsys.readouterr().out

    monkeypatch.setattr(module, "create_bucket", lambda *_: True)
    monkeypatch.setattr(module, "offload", lambda *_: False)
    monkeypatch.setattr("sys.argv", ["offload_to_s3.py", "bucket", "--store", str(tmp_path / "b")])
    assert module.main() == 1
    assert "not all of it is in the bucket" in capsys.readouterr().err


def test_a_store_finds_both_by_their_names(tmp_path: Path) -> None:
    env = environment()
    env["PYTHONPATH"] += f":{EXAMPLES}"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", BROKER, str(tmp_path)],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "['catalogue.db', 'tier.db']\n"


@pytest.mark.parametrize(("module", "most"), [("own_provider", 60), ("own_metadata_store", 80)])
def test_each_is_small(module: str, most: int) -> None:
    assert lines_of_code((EXAMPLES / f"{module}.py").read_text(encoding="utf-8")) <= most


def lines_of_code(source: str) -> int:
    """The lines of its classes and functions, without blank lines and comments."""
    lines = source.splitlines()
    spans = [
        lines[node.lineno - 1 : node.end_lineno]
        for node in ast.parse(source).body
        if isinstance(node, ast.ClassDef | ast.FunctionDef)
    ]
    return sum(bool(line.strip()) for span in spans for line in span)

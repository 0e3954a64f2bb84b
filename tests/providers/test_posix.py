"""The POSIX provider: the shipped contracts, RocketMQ's names, listings."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest

from tests.index.store_kit import open_below
from tieredstore.driver.metadata import PutNote
from tieredstore.driver.provider import ListedSegment, SegmentProvider
from tieredstore.driver.runtime import Runtime
from tieredstore.driver.segment import FileSegment
from tieredstore.flat.append_file import DELETION_NOTE, delete_pending, deletion_key
from tieredstore.metadata.memory_store import MemoryMetadataStore
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import (
    BackendRefusedError,
    BackendUnavailableError,
    InvalidConfigError,
    SegmentNotFoundError,
)
from tieredstore.model.values import SegmentType
from tieredstore.providers.posix import PosixProvider
from tieredstore.testing.provider_contract import SegmentProviderContract
from tieredstore.testing.segment_contract import FileSegmentContract

LOG, QUEUE, INDEX = SegmentType.COMMIT_LOG, SegmentType.CONSUME_QUEUE, SegmentType.INDEX
GOLDEN = Path(__file__).parent.parent / "golden"


class TestPosixFileSegment(FileSegmentContract):
    @pytest.fixture(autouse=True)
    def _provider(self, tmp_path: Path) -> None:
        self.provider = PosixProvider(tmp_path, "DefaultCluster", Runtime.inline())

    def open_segment(self, path: str) -> FileSegment:
        return self.provider.open(path, LOG, 0)


class TestPosixProvider(SegmentProviderContract):
    @pytest.fixture(autouse=True)
    def _root(self, tmp_path: Path) -> None:
        self.root = tmp_path / "not" / "there" / "yet"

    def open_provider(self, runtime: Runtime) -> SegmentProvider:
        return PosixProvider(self.root, "DefaultCluster", runtime)


@pytest.fixture
def provider(tmp_path: Path) -> PosixProvider:
    config = StoreConfig(path=str(tmp_path), cluster_name="GoldenCluster")
    return PosixProvider.from_config(config, Runtime.inline())


def test_files_lie_where_rocketmq_looks_for_them(provider: PosixProvider, tmp_path: Path) -> None:
    provider.open("broker-x/TopicTest/3", LOG, 104857600).write(0, b"data")
    file = tmp_path / (
        "1cfb8c9b_GoldenCluster/broker-x/TopicTest/3/COMMIT_LOG/40d473e300000000000104857600"
    )
    assert file.read_bytes() == b"data"


def test_a_tier_that_java_wrote_is_listed_whole() -> None:
    root = GOLDEN / "tier-posix" / "tiered"
    provider = PosixProvider(root, "GoldenCluster", Runtime.inline())
    files = {file: file.stat().st_size for file in root.rglob("*") if file.is_file()}
    listed = list(provider.list())
    assert len(listed) == len(files) > 40
    for found in listed:
        segment = provider.open(found.path, found.type, found.base)
        assert files[Path(segment.path)] == found.size == segment.size()
        assert segment.read(0, found.size) == Path(segment.path).read_bytes()


def test_what_is_no_segment_is_passed_over(provider: PosixProvider, tmp_path: Path) -> None:
    segment = provider.open("b/t/0", LOG, 0)
    segment.write(0, b"x")
    directory = Path(segment.path).parent
    (directory / "notes.txt").write_text("mine")
    (directory / "cfcd208400000000000000000001").write_text("wrong hash for its base")
    (tmp_path / "stray").write_text("x")
    assert list(provider.list()) == [ListedSegment("b/t/0", LOG, 0, 1)]


@pytest.mark.parametrize("cluster", ["", "..", ".", "a/b", "a\0"])
def test_a_cluster_name_that_is_no_directory_is_refused(tmp_path: Path, cluster: str) -> None:
    with pytest.raises(InvalidConfigError):
        PosixProvider(tmp_path, cluster, Runtime.inline())


def test_an_empty_root_is_refused() -> None:
    with pytest.raises(InvalidConfigError, match="path"):
        PosixProvider("", "DefaultCluster", Runtime.inline())


def test_a_file_without_bytes_is_no_segment_yet(provider: PosixProvider) -> None:
    segment = provider.open("b/t/0", LOG, 0)
    Path(segment.path).parent.mkdir(parents=True)
    Path(segment.path).touch()  # Java leaves such a file for each queue it has seen
    for call in (segment.size, lambda: segment.read(0, 0)):
        with pytest.raises(SegmentNotFoundError):
            call()
    assert list(provider.list()) == []
    segment.write(0, b"data")
    assert segment.size() == 4


def test_odd_things_in_the_tree_are_passed_over(provider: PosixProvider, tmp_path: Path) -> None:
    segment = provider.open("b/t/0", LOG, 0)
    segment.write(0, b"x")
    types = Path(segment.path).parent.parent
    queues = types.parent
    (types / "CONSUME_QUEUE").mkdir()
    (types / "CONSUME_QUEUE" / "cfcd208400000000000000000000").mkdir()
    (types / "INDEX").symlink_to("INDEX")
    (queues / "9").symlink_to("9")
    os.mkfifo(types / "COMMIT_LOG" / "c4ca423800000000000000000001")
    for name in ("abc", "007", "-1"):
        stray = queues / name / "COMMIT_LOG" / "cfcd208400000000000000000000"
        stray.parent.mkdir(parents=True)
        stray.write_bytes(b"x")
    assert list(provider.list()) == [ListedSegment("b/t/0", LOG, 0, 1)]


def test_what_lies_on_a_disk_that_is_not_there_is_neither_gone_nor_deleted(
    provider: PosixProvider, tmp_path: Path
) -> None:
    segment = provider.open("b/t/0", LOG, 0)
    segment.write(0, b"data")
    topic, disk = Path(segment.path).parents[2], tmp_path / "disk"
    topic.symlink_to(topic.rename(disk))
    away = disk.rename(tmp_path / "away")
    calls: list[Callable[[], object]] = [
        segment.size,
        lambda: segment.read(0, 1),
        lambda: segment.write(0, b"other"),
        lambda: list(provider.list()),
        lambda: list(provider.list("b/t/0")),
    ]
    for call in calls:
        with pytest.raises(BackendUnavailableError, match="is a link"):
            call()
    with pytest.raises(BackendRefusedError, match="is a link"):
        segment.delete()
    away.rename(disk)
    assert segment.read(0, 4) == b"data"
    segment.delete()
    assert list(provider.list()) == []


def test_a_disk_that_is_not_there_is_told_behind_what_lies_on_others(
    provider: PosixProvider, tmp_path: Path
) -> None:
    for path in ("b/away/0", "b/t/0"):
        provider.open(path, LOG, 0).write(0, b"data")
    topic = Path(provider.open("b/away/0", LOG, 0).path).parents[2]
    topic.rename(tmp_path / "away")
    topic.symlink_to(tmp_path / "disk")
    listed = provider.list("b")
    assert next(listed) == ListedSegment("b/t/0", LOG, 0, 4)
    with pytest.raises(BackendUnavailableError, match="is a link"):
        next(listed)


def test_a_disk_that_is_not_there_keeps_nothing_on_others_from_being_deleted(
    provider: PosixProvider, tmp_path: Path
) -> None:
    catalogue = MemoryMetadataStore(place="here", clock_ms=lambda: 0)
    for path in ("b/away/0", "b/t/0"):
        provider.open(path, LOG, 0).write(0, b"data")
        catalogue.apply([PutNote(DELETION_NOTE, deletion_key(path, LOG, 0), 1)])
    topic, disk = Path(provider.open("b/away/0", LOG, 0).path).parents[2], tmp_path / "disk"
    topic.symlink_to(topic.rename(disk))
    away = disk.rename(tmp_path / "away")
    assert delete_pending(provider, catalogue) == 1
    assert list(provider.list("b/t/0")) == []
    away.rename(disk)
    assert delete_pending(provider, catalogue) == 0
    assert list(provider.list()) == []


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir], ids=["fifo", "folder"])
def test_what_is_no_file_is_no_segment_and_not_waited_for(
    provider: PosixProvider, make: Callable[[Path], None]
) -> None:
    segment = provider.open("b/t/0", LOG, 0)
    Path(segment.path).parent.mkdir(parents=True)
    make(Path(segment.path))
    calls = [
        (segment.size, SegmentNotFoundError),
        (lambda: segment.read(0, 0), SegmentNotFoundError),
        (lambda: segment.write(0, b"data"), BackendRefusedError),
    ]
    for call, error in calls:
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(call)
            done, _ = wait([answer], timeout=20)
            if not done:  # the call is waiting for the FIFO's other end
                os.close(os.open(segment.path, os.O_WRONLY))
        assert done
        with pytest.raises(error):
            answer.result()


def test_a_relative_root_stays_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    relative = PosixProvider("tier", "DefaultCluster", Runtime.inline())
    monkeypatch.chdir("/")
    relative.open("b/t/0", LOG, 0).write(0, b"x")
    assert (tmp_path / "tier").is_dir()


def test_what_is_cut_off_is_gone_and_the_rest_goes_on(provider: PosixProvider) -> None:
    segment = provider.open("broker-x/TopicTest/3", QUEUE, 0)
    with pytest.raises(SegmentNotFoundError):
        segment.cut(1)
    segment.write(0, b"0123456789")
    for size in (20, 6, 6):
        segment.cut(size)
    assert provider.open("broker-x/TopicTest/3", QUEUE, 0).size() == segment.size() == 6
    segment.write(6, b"abc")
    assert segment.read(0, 9) == b"012345abc"


def test_no_descriptor_stays_open(provider: PosixProvider, tmp_path: Path) -> None:
    segments = [provider.open(f"b/t/{number}", LOG, 0) for number in range(100)]
    for segment in segments:
        segment.write(0, b"data")
        segment.read(0, 4)
        segment.size()
    assert not open_below(tmp_path)

"""A deleted topic's directory: what a store made goes, what somebody else put there stays."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tests.local.store_audit import opened
from tieredstore.local.consume_queues import remove_topic_directory
from tieredstore.testing.disk import ForgetfulDisk
from tieredstore.testing.samples import TOPIC, a_message

FIRST, SECOND = f"{0:020}", f"{400:020}"


def a_topic(root: Path, *names: str) -> Path:
    """A directory with these files; a name that ends in a slash is a directory."""
    topic = root / "consumequeue" / "T"
    topic.mkdir(parents=True)
    for name in names:
        path = topic / name
        if name.endswith("/"):
            path.mkdir(parents=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"x" * 20)
    return topic


def held(topic: Path) -> list[str]:
    return sorted(str(path.relative_to(topic)) for path in topic.rglob("*") if not path.is_dir())


@pytest.mark.parametrize(
    "names",
    [(), ("0/",), (f"0/{FIRST}",), (f"0/{FIRST}", f"0/{SECOND}", f"7/{FIRST}", "2147483647/")],
)
def test_a_directory_of_queues_goes_with_all_that_is_in_it(
    tmp_path: Path, names: tuple[str, ...]
) -> None:
    topic = a_topic(tmp_path, *names)
    remove_topic_directory(topic)
    assert list((tmp_path / "consumequeue").iterdir()) == []
    remove_topic_directory(topic)


@pytest.mark.parametrize(
    "foreign",
    [
        *("notes.txt", FIRST, "0/notes.txt", "0/123", f"0/{FIRST}.bak", f"0/deep/{FIRST}"),
        *(f"x/{FIRST}", f"01/{FIRST}", f"-1/{FIRST}", f"2147483648/{FIRST}", "0/" + "9" * 20),
    ],
)
def test_what_is_no_file_of_a_queue_stays_and_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, foreign: str
) -> None:
    topic = a_topic(tmp_path, f"0/{SECOND}", f"1/{FIRST}", foreign)
    with caplog.at_level(logging.WARNING):
        remove_topic_directory(topic)
    assert held(topic) == [foreign]
    assert not (topic / "1").exists()
    assert str(topic / foreign.split("/", maxsplit=1)[0]) in caplog.text


def test_links_are_not_followed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / FIRST).write_bytes(b"precious")
    topic = a_topic(tmp_path, f"0/{FIRST}")
    (topic / "1").symlink_to(elsewhere, target_is_directory=True)
    (topic / "0" / SECOND).symlink_to(elsewhere / FIRST)
    remove_topic_directory(topic)
    assert (elsewhere / FIRST).read_bytes() == b"precious"
    assert (topic / "1").is_symlink()
    assert (topic / "0" / SECOND).is_symlink()
    linked = tmp_path / "consumequeue" / "L"
    linked.symlink_to(elsewhere, target_is_directory=True)
    remove_topic_directory(linked)
    assert (elsewhere / FIRST).exists()


def test_its_names_are_gone_durably(tmp_path: Path) -> None:
    topic = a_topic(tmp_path, f"0/{FIRST}")
    with ForgetfulDisk(topic.parent) as disk:
        remove_topic_directory(topic)
    assert [path for path, _ in disk.syncs] == [topic / "0", topic, topic.parent]
    assert not (disk.synced(tmp_path / "synced") / topic.name).exists()


def test_a_deleted_topic_keeps_what_others_put_into_it(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.put_messages([a_message(number) for number in range(100)])
    topic = tmp_path / "consumequeue" / TOPIC
    extended = tmp_path / "consumequeue_ext" / TOPIC / "0" / FIRST
    extended.parent.mkdir(parents=True)
    extended.write_bytes(b"x")
    (topic / "README").write_text("mine")
    (topic / "0" / "backup").mkdir()
    (topic / "0" / "backup" / FIRST).write_text("mine too")
    assert store.delete_topics([TOPIC]) == 1
    assert held(topic) == [f"0/backup/{FIRST}", "README"]
    assert extended.read_bytes() == b"x"
    assert store.put_message(a_message(0)).queue_offset == 0
    assert len(store.get_message(TOPIC, 0, 0).messages) == 1
    store.shutdown()
    store = opened(tmp_path)
    assert (store.min_offset(TOPIC, 0), store.max_offset(TOPIC, 0)) == (0, 1)
    store.shutdown()

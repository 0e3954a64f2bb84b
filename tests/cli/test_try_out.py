"""The verbs put and offload: a store made by hand, its tier, and every other verb on them."""

from __future__ import annotations

import base64
import io
from pathlib import Path

import pytest

from tests.cli.cli_kit import Command, picture
from tieredstore.cli.output import ExitCode
from tieredstore.model.errors import BackendRefusedError
from tieredstore.providers.posix_shelf import PosixGenerations


def tier_of(folder: Path) -> list[object]:
    return [*("--provider", "posix", "--path", folder / "tier"), "--store-path", folder]


def test_what_is_put_by_hand_is_found_in_the_local_store_and_in_the_tier(
    command: Command, tmp_path: Path
) -> None:
    folder = tmp_path / "try"
    words = ("--body", "hello", "--key", "order-1", "--key", "vip", "--tag", "new")
    (row,) = command.run("put", "Orders", "--store-path", folder, *words, "--json").rows
    assert (row["topic"], row["queue_id"], row["queue_offset"]) == ("Orders", 0, 0)
    (local,) = command.run("local", "cat", folder, "--json", "--with-body").rows
    assert base64.b64decode(local["body"]) == b"hello"
    (offloaded,) = command.run("offload", "--store-path", folder, "--seal", "--json").rows
    assert offloaded["committed_offset"] == offloaded["max_offset"] == 1
    for key in ("order-1", "vip"):
        (found,) = command.run("query", "Orders", key, *tier_of(folder), "--json").rows
        assert found["sha256"] == local["sha256"]  # it is the first in both logs
        assert found["tags"] == "new"
    assert command.run("audit", *tier_of(folder)).code == 0


def test_lines_of_stdin_are_messages(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = io.TextIOWrapper(io.BytesIO(b"one\r\ntwo\n\xff\xfe"))
    monkeypatch.setattr("sys.stdin", lines)
    ran = command.run("put", "Lines", "--store-path", tmp_path, "--queue", 2)
    assert ran.out.splitlines() == [
        "3 messages put into Lines/2, the last one at offset 2",
        f"next: tieredstore offload --store-path {tmp_path}",
    ]
    bodies = command.run("local", "cat", tmp_path, "--json", "--with-body").rows
    assert [base64.b64decode(row["body"]) for row in bodies] == [b"one", b"two", b"\xff\xfe"]


def test_an_empty_store_path_makes_no_store(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command.run("put", "Orders", "--store-path", "", "--body", "x").refused(2, "store_path")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("topic", ["%LMQ%a", "SCHEDULE_TOPIC_XXXX", "rmq_sys_x", "me"])
def test_offload_says_which_topics_stay_out_of_the_tier(
    command: Command, tmp_path: Path, topic: str
) -> None:
    for each in (topic, "Orders"):
        assert command.run("put", each, "--store-path", tmp_path, "--body", "x").code == 0
    words = ("offload", "--store-path", tmp_path, "--broker", "me")
    told = dict(line.split(": ", 1) for line in command.run(*words).done().out.splitlines()[:2])
    assert told["Orders/0"] == "1 of 1 in the tier"
    assert told[f"{topic}/0"].startswith("stays out of the tier, as ")
    rows = command.run(*words, "--json").done().rows
    assert {row["topic"]: row["is_tiered"] for row in rows} == {topic: False, "Orders": True}


def test_a_second_offload_uploads_only_what_is_new(command: Command, tmp_path: Path) -> None:
    for count in (300, 700):
        put = ("put", "Many", "--store-path", tmp_path, "--body", "x", "--repeat", count)
        assert command.run(*put).code == 0
        assert command.run("offload", "--store-path", tmp_path).code == 0
    (row,) = command.run("queues", *tier_of(tmp_path), "--json").rows
    assert (row["min_offset"], row["max_offset"]) == (0, 1000)
    before = picture(tmp_path / "tier")
    said = command.run("offload", "--store-path", tmp_path).out
    assert "Many/0: 1,000 of 1,000 in the tier" in said
    assert "tieredstore queues --provider posix" in said
    assert picture(tmp_path / "tier") == before


def test_what_was_not_uploaded_says_of_which_queue_and_why(
    command: Command, tmp_path: Path
) -> None:
    command.run("put", "orders", "--store-path", tmp_path, "--body", "x")
    (tmp_path / "file").touch()
    words = ("--provider", "posix", "--path", tmp_path / "file", "--store-path", tmp_path)
    ran = command.run("offload", *words)
    ran.refused(ExitCode.REFUSED)
    assert ran.err.startswith("tieredstore: not all of it was uploaded, the first: orders/0: ")
    assert "QueueHealth" not in ran.err
    assert "file" in ran.err


def test_what_readers_elsewhere_do_not_see_yet_was_not_offloaded(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise BackendRefusedError("catalogue", "create", "no permission")

    monkeypatch.setattr(PosixGenerations, "create", refuse)
    command.run("put", "orders", "--store-path", tmp_path, "--body", "x")
    ran = command.run("offload", "--store-path", tmp_path, "--seal")
    ran.refused(ExitCode.REFUSED, "readers elsewhere do not see all of it yet: create catalogue")


def test_what_cannot_be_done_is_one_clear_line(command: Command, tmp_path: Path) -> None:
    absent = command.run("offload", "--store-path", tmp_path / "absent")
    assert absent.code == ExitCode.NOT_THERE
    assert absent.err == f"tieredstore: no such directory: {tmp_path / 'absent'}\n"
    (tmp_path / "empty").mkdir()
    empty = command.run("offload", "--store-path", tmp_path / "empty")
    empty.refused(ExitCode.NOT_THERE, "empty: no local store: it has no commitlog")
    assert not (tmp_path / "absent").exists()
    unnamed = command.run("offload")
    assert unnamed.code == ExitCode.USAGE
    assert "--store-path" in unnamed.err
    refused = command.run("put", "a/b", "--store-path", tmp_path / "s", "--body", "x")
    assert refused.code == ExitCode.REFUSED
    assert refused.err.startswith("tieredstore: not put: ")
    assert refused.err.count("\n") == 1

"""`cat --plain`: bodies as their producers made them, of a tier and of a local store."""

from __future__ import annotations

import base64
import zlib
from pathlib import Path

import pytest

from tests.cli.cli_kit import Command, Ran
from tests.jobs.written_tier import WrittenTier, posix_config
from tieredstore.driver.runtime import Runtime
from tieredstore.local import LocalConfig, LocalMessageStore
from tieredstore.model.messages import Message

PLAIN = "ein größerer Auftrag, ".encode() * 20
BODIES = ((0, PLAIN), (0x0001, zlib.compress(PLAIN)), (0x0301, zlib.compress(b"short")))
DAMAGED = 0x0001, zlib.compress(PLAIN)[:-4]
KINDS = pytest.mark.parametrize("kind", ["tier", "local"])


def cat(
    command: Command, folder: Path, kind: str, bodies: tuple[tuple[int, bytes], ...], *words: str
) -> Ran:
    if kind == "local":
        config = LocalConfig(store_path=str(folder), commit_log_file_bytes=1 << 16)
        store = LocalMessageStore(config, Runtime.inline())
        store.load()
        store.start()
        for sys_flag, body in bodies:
            sent = Message(topic="orders", queue_id=0, body=body, sys_flag=sys_flag)
            assert store.put_message(sent).stored
        store.flush()
        store.shutdown()
        sizes = "--commit-log-file-bytes", 1 << 16
        return command.run("local", "cat", folder, "--topic", "orders", *sizes, *words)
    tier = WrittenTier(config=posix_config(folder, index_enabled=False))
    for sys_flag, body in bodies:
        tier.add("orders", 0, 1, bodies=[body], sys_flag=sys_flag)
    return command.run(
        *("cat", "orders", "--provider", "posix", "--path", tier.config.path),
        *("--store-path", tier.config.store_path, "--cluster", "c", "--broker", "broker-a"),
        *words,
    )


@KINDS
def test_plain_bodies_are_shown_beside_those_that_are_stored(
    command: Command, tmp_path: Path, kind: str
) -> None:
    ran = cat(command, tmp_path, kind, BODIES, "--json", "--body", "--plain").done()
    assert [base64.b64decode(row["body"]) for row in ran.rows] == [body for _, body in BODIES]
    plain = [base64.b64decode(row["body_plain"]) for row in ran.rows]
    assert plain == [PLAIN, PLAIN, b"short"]
    assert all("body_problem" not in row for row in ran.rows)


@KINDS
def test_people_see_the_plain_body(command: Command, tmp_path: Path, kind: str) -> None:
    ran = cat(command, tmp_path, kind, BODIES, "--plain").done()
    shown = [line.strip() for line in ran.out.splitlines() if line.startswith("    ")]
    assert shown == [PLAIN.decode().strip(), PLAIN.decode().strip(), "short"]


@KINDS
def test_a_body_that_cannot_be_made_plain_is_told_of_and_hides_no_message(
    command: Command, tmp_path: Path, kind: str
) -> None:
    ran = cat(command, tmp_path, kind, (BODIES[1], DAMAGED, BODIES[2]), "--plain", "--json")
    assert ran.code == 4
    assert ran.err == (
        "tieredstore: 1 bodies could not be made plain, the first of orders/0/1: the compressed"
        " body is damaged (zlib): it ends too early; the messages themselves are sound\n"
    )
    assert [row["body_plain"] is None for row in ran.rows] == [False, True, False]
    assert ran.rows[1]["body_problem"] == "the compressed body is damaged (zlib): it ends too early"
    assert all("body" not in row for row in ran.rows)

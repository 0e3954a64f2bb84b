"""An empty machine made ready by one command, and the broker that goes on there."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.access.lost_disks import ONE, OTHER, TWO, Machine
from tests.cli.cli_kit import Command, picture
from tieredstore.access.wiring import NoCatalogueError


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A tier in a folder with ten messages a queue, and the disk that wrote it gone."""
    machine = Machine(tmp_path)
    machine.open()
    machine.put(10)
    machine.store.consumer_offsets.commit("readers", *ONE, 4)
    machine.flush()
    machine.put(3)
    machine.end(drain=False)
    machine.lose_disk()
    return machine


def words(machine: Machine) -> list[object]:
    return [
        *("--provider", "posix", "--path", machine.root / "tier"),
        *("--store-path", machine.disk / "store"),
        *("--cluster", "cluster-a", "--broker", "broker-a"),
    ]


def test_a_broker_begins_no_second_tier_beside_the_first(machine: Machine) -> None:
    before = picture(machine.root / "tier")
    with pytest.raises(NoCatalogueError, match="recover --apply"):
        machine.open()
    assert picture(machine.root / "tier") == before
    assert not list(machine.disk.rglob("tieredStoreMetadata.json"))


@pytest.mark.parametrize("published", [True, False])
def test_an_empty_machine_goes_on_with_its_folder(
    machine: Machine, command: Command, published: bool
) -> None:
    if not published:
        shutil.rmtree(machine.root / "tier" / ".catalog")
    before = picture(machine.root)
    ran = command.run("recover", *words(machine))
    assert ran.code == 0
    assert "--apply makes it from" in ran.out
    assert "nothing was changed" in ran.out
    assert ran.out.splitlines()[-1].startswith("next: tieredstore recover --provider posix ")
    assert ran.out.endswith(" --apply\n")
    assert "3 queues, 30 messages" in ran.out
    assert picture(machine.root) == before
    ran = command.run("recover", "--apply", *words(machine), "--json").done()
    assert ran.rows[0]["catalogue"] == "made"
    assert {(row["topic"], row["queue_id"], row["max_offset"]) for row in ran.rows[1:-1]} == {
        (*key, 10) for key in (ONE, TWO, OTHER)
    }
    assert ran.rows[-1]["groups"] == (["readers"] if published else [])
    made = picture(machine.disk)
    ran = command.run("recover", "--apply", *words(machine)).done()
    assert "is here: nothing has to be made" in ran.out
    assert ran.out.endswith("\nnext: start the broker\n")
    assert picture(machine.disk) == made
    store = machine.open()
    assert store.agreement.ends == {ONE: 10, TWO: 10, OTHER: 10}
    assert store.consumer_offsets.get("readers", *ONE) == (4 if published else None)
    machine.check()
    machine.put(5)
    machine.flush()
    machine.check()
    machine.end()


def test_it_says_that_the_machine_is_not_empty(machine: Machine, command: Command) -> None:
    log = machine.disk / "store" / "commitlog"
    log.mkdir(parents=True)
    (log / f"{0:020d}").touch()
    assert "has messages" in command.run("recover", *words(machine)).out


def test_there_must_be_a_tier(machine: Machine, command: Command) -> None:
    shutil.rmtree(machine.root / "tier")
    (machine.root / "tier").mkdir()
    command.run("recover", "--apply", *words(machine)).refused(3, "not one segment")

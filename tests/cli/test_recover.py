"""One command makes an empty machine ready, and the broker goes on there."""

from __future__ import annotations

import shutil
from copy import deepcopy
from pathlib import Path

import pytest

from tests.access.lost_disks import ONE, OTHER, TWO, Machine
from tests.cli.cli_kit import Command, picture
from tests.every_step import every_step
from tieredstore.access.wiring import NoCatalogueError
from tieredstore.cli.output import ExitCode
from tieredstore.driver import durable
from tieredstore.roundlog.layout import ObjectLayout
from tieredstore.testing.disk import ForgetfulDisk


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A tier in a folder with ten messages a queue; the disk that wrote it is lost."""
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


def test_a_backup_that_was_made_while_the_broker_ran_is_a_tier(
    tmp_path: Path, command: Command
) -> None:
    """As the guide makes it: what is published first, then the segments."""
    machine = Machine(tmp_path)
    machine.open()
    machine.put(10)
    assert machine.store.flush(seal=True)
    tier, copy = machine.root / "tier", machine.root / "copy"
    shutil.copytree(tier / ".catalog", copy / ".catalog")
    machine.put(7)
    machine.flush()
    others = shutil.ignore_patterns(".catalog")
    shutil.copytree(tier, copy, ignore=others, dirs_exist_ok=True)
    machine.end()
    shutil.rmtree(tier)
    copy.rename(tier)
    machine.lose_disk()
    assert "3 queues, 51 messages" in command.run("recover", "--apply", *words(machine)).done().out
    command.run("audit", *words(machine)).done()


def test_it_tells_what_a_folder_lacks_that_was_copied_from_a_bucket(
    machine: Machine, command: Command
) -> None:
    (machine.root / "tier" / ObjectLayout("cluster-a").rounds("broker-a")).mkdir(parents=True)
    for apply in ([], ["--apply"]):
        ran = command.run("recover", *apply, *words(machine))
        assert ran.code == 0
        assert "came from a bucket" in ran.err
        assert "are missing here; `tieredstore migrate` copies them" in ran.err
        assert "next: " not in ran.out


def test_half_a_migration_is_no_tier_to_continue_with(machine: Machine, command: Command) -> None:
    target = machine.root / "target.toml"
    target.write_text(
        '[tieredstore]\nbroker_name = "broker-a"\ncluster_name = "cluster-a"\nprovider = "posix"\n'
        f'path = "{machine.root / "moved"}"\nstore_path = "{machine.disk / "new"}"\n'
    )
    command.run("recover", "--apply", *words(machine)).done()
    migrate = ["migrate", *words(machine), "--to-config", target]
    assert command.run(*migrate).code == 0
    for apply in ([], ["--apply"]):
        ran = command.run("recover", *apply, "--config", target)
        ran.refused(ExitCode.NOT_THERE, "`migrate` with --cut-over")
    assert command.run(*migrate, "--cut-over").code == 0
    assert "nothing has to be made" in command.run("recover", "--config", target).done().out


def test_with_a_damaged_copy_the_bytes_alone_are_asked(machine: Machine, command: Command) -> None:
    for file in (machine.root / "tier" / ".catalog").rglob("*"):
        if file.is_file():
            file.write_bytes(file.read_bytes()[:-1])
    ran = command.run("recover", *words(machine))
    assert ran.code == 0
    assert "--apply makes it from the bytes" in ran.out
    assert "what is published cannot be used" in ran.err
    ran = command.run("recover", "--apply", *words(machine))
    assert ran.code == 4
    assert "is made" in ran.out
    assert "1 not sound, the first: what is published cannot be used" in ran.err
    store = machine.open()
    assert store.agreement.ends == {ONE: 10, TWO: 10, OTHER: 10}
    machine.end()


def test_a_tier_all_of_whose_messages_have_expired_is_no_empty_place(
    tmp_path: Path, command: Command
) -> None:
    """Only what is published says which offsets were assigned."""
    machine = Machine(tmp_path)
    machine.open()
    machine.put(10)
    machine.flush()
    machine.end(drain=False)
    command.run("expire", *words(machine)).done()
    machine.lose_disk()
    left = [file for file in (machine.root / "tier").rglob("*") if file.is_file()]
    assert {file.relative_to(machine.root).parts[1] for file in left} == {".catalog"}
    with pytest.raises(NoCatalogueError, match="recover --apply"):
        machine.open()
    ran = command.run("recover", "--apply", *words(machine), "--json").done()
    assert [row["max_offset"] for row in ran.rows[1:-1]] == [10, 10, 10]
    assert machine.open().agreement.ends == {ONE: 10, TWO: 10, OTHER: 10}
    machine.put(3)
    machine.end()


class CutOff:
    """`recover --apply` on a machine that dies at a step on the disk, then again on the remains."""

    def __init__(self, machine: Machine, command: Command) -> None:
        self.machine, self.command = machine, command
        self._known = machine.acked, machine.committed
        shutil.copytree(machine.root / "tier", machine.root / "tier-before")

    def steps(self) -> int:
        return self._first(0).steps

    def _first(self, stop_at: int) -> ForgetfulDisk:
        machine, tier = self.machine, self.machine.root / "tier"
        shutil.rmtree(tier)
        shutil.copytree(machine.root / "tier-before", tier)
        machine.disk = machine.root / f"disk-{stop_at}"
        machine.disk.mkdir()
        machine.acked, machine.committed = deepcopy(self._known)
        machine.log_offsets.clear()
        durable._durable_directories.clear()  # as in a new process
        with ForgetfulDisk(machine.disk, stop_at=stop_at) as disk:
            self.command.run("recover", "--apply", *words(machine))
        return disk

    def at(self, step: int, has_power: bool) -> None:
        machine = self.machine
        disk = self._first(step + 1)
        assert disk.died
        left = machine.root / f"left-{step}"
        machine.disk = disk.written(left) if has_power else disk.synced(left)
        assert self.command.run("recover", "--apply", *words(machine)).code == 0
        store = machine.open()
        assert store.agreement.ends == {ONE: 10, TWO: 10, OTHER: 10}
        machine.check()
        machine.put(1)
        assert store.flush(seal=True)
        assert store.health().catalogue.error is None
        machine.end()


@pytest.mark.parametrize("has_power", [True, False])
@pytest.mark.parametrize(
    ("published", "apart"),
    [
        (True, 5),
        pytest.param(True, 1, marks=pytest.mark.torture),
        pytest.param(False, 1, marks=pytest.mark.torture),
    ],
)
def test_cut_off_at_any_step_it_is_done_again_and_the_broker_publishes(
    machine: Machine, command: Command, published: bool, apart: int, has_power: bool
) -> None:
    """A killed machine leaves what was written; a power failure leaves what was synced."""
    if not published:
        shutil.rmtree(machine.root / "tier" / ".catalog")
    cut_off = CutOff(machine, command)
    steps = range(cut_off.steps())[3 % apart :: apart]
    assert len(steps) > 3
    every_step(lambda step: cut_off.at(step, has_power), steps=steps)


def test_it_says_that_the_machine_is_not_empty(machine: Machine, command: Command) -> None:
    log = machine.disk / "store" / "commitlog"
    log.mkdir(parents=True)
    (log / f"{0:020d}").touch()
    assert "has messages" in command.run("recover", *words(machine)).out


def test_there_must_be_a_tier(machine: Machine, command: Command) -> None:
    shutil.rmtree(machine.root / "tier")
    (machine.root / "tier").mkdir()
    command.run("recover", "--apply", *words(machine)).refused(3, "not one segment")

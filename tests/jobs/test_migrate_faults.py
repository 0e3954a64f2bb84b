"""Migrations that fail or die at every step: the next run goes on, and nothing is there twice."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.every_step import every_step
from tests.jobs import faulty_tiers
from tests.jobs.growing_tier import broker_on, everything, tier_at
from tests.jobs.migrate_kit import copy_of_golden, files, moved, picture, posix
from tests.jobs.verify_kit import golden_config
from tieredstore.access.reader import TieredReader
from tieredstore.jobs.job import JobExit, JobState
from tieredstore.metadata.json_store import JsonMetadataStore
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import BackendUnavailableError
from tieredstore.model.values import SegmentType
from tieredstore.testing.faults import Fault, ObjectFaults

ROOT = Path(__file__).parents[2]

# Reads numbers; for each a child of its own dies by SIGKILL before so many steps that leave
# something behind. Says how many were left where the child came to its end.
DYING = """
import os, signal, sys
from tests.jobs.migrate_kit import moved
from tieredstore.jobs import migrate_copy
from tieredstore.metadata.json_store import JsonMetadataStore
from tieredstore.model.config import StoreConfig
from tieredstore.providers.posix import PosixFileSegment

left = 0

def dying(call):
    def step(*args, **kwargs):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*args, **kwargs)
    return step

for place, name in (
    (PosixFileSegment, "create"),
    (PosixFileSegment, "write"),
    (PosixFileSegment, "delete"),
    (migrate_copy.MigrationJournal, "add"),
    (migrate_copy.MigrationJournal, "sync"),
    (migrate_copy.MigrationJournal, "remove"),
    (JsonMetadataStore, "apply"),
    (JsonMetadataStore, "close"),
    (os, "replace"),
):
    setattr(place, name, dying(getattr(place, name)))
source, target = map(StoreConfig.from_toml, sys.argv[1:3])
for line in sys.stdin:
    left = int(line)
    child = os.fork()
    if not child:
        moved(source, target, cut_over=True)
        print("left", left, flush=True)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        print("killed", flush=True)
"""


@pytest.fixture
def posix_faults() -> Iterator[None]:
    faulty_tiers.POSIX_FAULTS.forgive()
    yield
    faulty_tiers.POSIX_FAULTS.forgive()


def settings(config: StoreConfig, place: Path) -> Path:
    place.write_text(
        f'provider = "posix"\npath = "{config.path}"\nstore_path = "{config.store_path}"\n'
        f'broker_name = "{config.broker_name}"\ncluster_name = "{config.cluster_name}"\n'
        f"index_slot_count = {config.index_slot_count}\n"
        f"index_item_count = {config.index_item_count}\n"
    )
    return place


class Dying:
    """Runs a migration with its cut-over in processes that die."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def run(self, step: int) -> int | None:
        """How many steps were left, where it came to its end."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(step, file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline().split()
        assert answer, "it ended by itself, and badly"
        return int(answer[1]) if answer[0] == "left" else None


@contextmanager
def dying(source: StoreConfig, target: StoreConfig, place: Path) -> Iterator[Dying]:
    command = [
        *(sys.executable, "-c", DYING),
        str(settings(source, place / "source.toml")),
        str(settings(target, place / "target.toml")),
    ]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield Dying(process)
        assert process.stdin is not None
        process.stdin.close()


def whole(target: StoreConfig) -> None:
    """All of the golden tier, each file once, and a catalogue that names it."""
    assert files(target) == files(golden_config())
    with TieredReader(golden_config()) as old, TieredReader(target) as new:
        assert new.segments() == old.segments()


def test_killed_again_and_again_it_comes_to_its_end(tmp_path: Path) -> None:
    source, target = copy_of_golden(tmp_path / "java"), posix(tmp_path / "new")
    before = picture(tmp_path / "java")
    dice = random.Random(7)
    with dying(source, target, tmp_path) as process:
        for _ in range(30):
            left = process.run(dice.randrange(10, 60))
            after = files(target)
            for name, data in after.items():  # whole, or a growing one's beginning
                if not name.endswith(".tmp"):
                    assert files(golden_config())[name].startswith(data)
            if left is not None:
                break
    assert moved(source, target, cut_over=True).facts["cut_over"] == "done before"
    whole(target)
    after_all = picture(tmp_path / "java")
    assert {name: after_all[name] for name in before} == before


def test_killed_at_any_step_of_the_cut_over_it_is_whole_or_not_there(tmp_path: Path) -> None:
    source, target = copy_of_golden(tmp_path / "java"), posix(tmp_path / "new")
    moved(source, target)

    def check(left: int | None, step: int) -> bool:
        with JsonMetadataStore.open(target.catalogue_path, read_only=True) as metadata:
            assert len(metadata.queues()) in (0, 9)
            assert len(metadata.segments()) in (0, 57)
        return left is None

    with dying(source, target, tmp_path) as process:
        assert every_step(process.run, check) > 4
    whole(target)
    assert moved(source, target, cut_over=True).facts["cut_over"] == "done before"


@pytest.mark.parametrize("fault", [Fault.BEFORE, Fault.AFTER, Fault.HALF])
@pytest.mark.usefixtures("posix_faults")
def test_after_faults_at_the_target_the_next_run_goes_on(tmp_path: Path, fault: Fault) -> None:
    target = replace(posix(tmp_path), provider="tests.jobs.faulty_tiers:FaultyPosix")
    for after in (3, 20, 40, 80, 81, 82, 120):
        faulty_tiers.POSIX_FAULTS.strike(fault, after=after)
    first = moved(golden_config(), target)
    faulty_tiers.POSIX_FAULTS.forgive()
    assert first.state in (JobState.INCOMPLETE, JobState.DONE)
    again = moved(golden_config(), target)
    assert again.state is JobState.DONE
    assert files(target) == files(golden_config())
    assert moved(golden_config(), target).counts["copied"] == 0


@pytest.mark.usefixtures("posix_faults")
def test_a_target_that_takes_nothing_is_told_at_once(tmp_path: Path) -> None:
    target = replace(posix(tmp_path), provider="tests.jobs.faulty_tiers:FaultyPosix")
    faulty_tiers.POSIX_FAULTS.always = Fault.BEFORE
    with pytest.raises(BackendUnavailableError, match="fails before it has an effect"):
        moved(copy_of_golden(tmp_path / "java"), target, cut_over=True)
    assert not Path(target.catalogue_path).exists()
    assert not Path(target.path).exists()


def test_what_was_stored_wrong_is_noticed_and_copied_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = copy_of_golden(tmp_path / "java"), posix(tmp_path)
    lying = replace(target, provider="tests.jobs.faulty_tiers:LyingPosix")
    place = ("broker-gold-a/GoldAa/0", SegmentType.COMMIT_LOG, 0)
    monkeypatch.setattr(faulty_tiers.LyingPosix, "lies_about", place)
    report = moved(source, lying, cut_over=True)
    assert report.exit_code is JobExit.DAMAGE
    assert "what was read back is not what was written" in report.failures[0].text
    assert (report.counts["copied"], report.facts["cut_over"]) == (56, "refused")
    monkeypatch.undo()
    assert moved(source, lying, cut_over=True).counts["copied"] == 1
    assert files(target) == files(golden_config())


def test_a_bucket_that_answers_badly_gets_everything_once(tmp_path: Path) -> None:
    source = tier_at(tmp_path / "old")
    bucket = tmp_path.name
    target = replace(
        source,
        provider="tests.jobs.faulty_tiers:FaultyObjects",
        bucket=bucket,
        path="",
        store_path=str(tmp_path / "new"),
    )
    back = tier_at(tmp_path / "back")
    faulty_tiers.OBJECT_FAULTS[bucket] = ObjectFaults(0.1, seed=11)
    for count in (30, 1, 80):
        with broker_on(source) as broker:
            broker.put(count)
            broker.put(count, queue_id=1)
        for _ in range(10):
            if moved(source, target).state is JobState.DONE:
                break
    assert sum(faulty_tiers.OBJECT_FAULTS[bucket].struck.values()) > 15
    assert moved(source, target, cut_over=True).facts["cut_over"] == "done"
    assert moved(target, back, cut_over=True).facts["cut_over"] == "done"
    assert files(back) == files(source)
    assert everything(back) == everything(source)


def test_a_copy_that_is_gone_again_is_noticed_before_the_cut_over(tmp_path: Path) -> None:
    source, target = copy_of_golden(tmp_path / "java"), posix(tmp_path)
    moved(source, target)
    Path(target.path, min(Path(target.path).rglob("broker-gold-a/GoldAa/0/*/*"))).unlink()
    report = moved(source, target, cut_over=True)
    assert (report.facts["cut_over"], report.exit_code) == ("refused", 4)
    assert [each.kind for each in report.findings] == ["lost-copy"]
    report = moved(source, target, cut_over=True)
    assert (report.facts["cut_over"], report.counts["copied"]) == ("done", 1)
    assert files(target) == files(golden_config())

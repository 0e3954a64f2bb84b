"""A tier that Java wrote, moved to another directory: the same files, the same answers."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.codec.golden_files import expected
from tests.jobs.migrate_kit import copy_of_golden, files, moved, picture, posix
from tests.jobs.verify_kit import golden_config
from tieredstore.access.reader import TieredReader
from tieredstore.jobs.job import JobExit, JobState
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import InvalidConfigError


def test_the_copy_is_the_original_byte_for_byte(tmp_path: Path) -> None:
    target = posix(tmp_path)
    report = moved(copy_of_golden(tmp_path / "java"), target, cut_over=True)
    assert report.exit_code is JobExit.DONE
    assert files(target) == files(golden_config())
    assert report.counts["copied"] == len(files(golden_config()))
    assert report.byte_counts["copied"] == sum(map(len, files(golden_config()).values()))


def test_the_source_is_only_read(tmp_path: Path) -> None:
    source = copy_of_golden(tmp_path / "source")
    before = picture(tmp_path / "source")
    moved(source, posix(tmp_path / "target"))
    assert picture(tmp_path / "source") == before
    moved(source, posix(tmp_path / "target"), cut_over=True)
    after = picture(tmp_path / "source")
    assert {name: after[name] for name in before} == before  # but for the file of a lock


def test_every_message_and_key_is_found_in_the_copy(tmp_path: Path) -> None:
    source = copy_of_golden(tmp_path / "java")
    target = posix(tmp_path)
    moved(source, target, cut_over=True)
    # The index file that is not uploaded is the broker's, and stays with it.
    shutil.rmtree(Path(source.store_path) / "tiered_index_file")
    with TieredReader(source) as old, TieredReader(target) as new:
        assert new.queues() == old.queues()
        assert new.topics() == old.topics()
        assert new.segments() == old.segments()
        answers = expected("tier-posix.expect-key-queries.json")["answers"]
        asked = {(row["query"]["topic"], row["query"]["key"]) for row in answers}
        found = [len(new.query_message(*each).messages) for each in sorted(asked)]
        assert found == [len(old.query_message(*each).messages) for each in sorted(asked)]
        assert sum(found) > len(asked) / 2


def test_the_snippet_opens_the_target(tmp_path: Path) -> None:
    source = copy_of_golden(tmp_path / "java")
    target = posix(tmp_path)
    report = moved(source, target, cut_over=True)
    settings = tmp_path / "target.toml"
    settings.write_text(str(report.facts["config"]))
    with TieredReader(StoreConfig.from_file(settings)) as reader:
        assert len(reader.queues()) == 9


@pytest.mark.parametrize("adopt", [False, True])
def test_a_cut_over_leaves_nothing_in_the_source(tmp_path: Path, adopt: bool) -> None:
    source, target = copy_of_golden(tmp_path / "java"), posix(tmp_path)
    before = picture(tmp_path / "java")
    moved(source, target, cut_over=True, adopt=adopt)
    assert picture(tmp_path / "java") == before
    lock = Path(f"{source.catalogue_path}.lock")
    lock.touch()  # of a broker that ran on it
    moved(source, target, cut_over=True, adopt=adopt)
    assert lock.exists()


def test_before_the_cut_over_there_is_no_catalogue(tmp_path: Path) -> None:
    target = posix(tmp_path)
    report = moved(golden_config(), target)
    assert report.state is JobState.DONE
    assert files(target) == files(golden_config())
    assert not Path(target.catalogue_path).exists()


def test_a_second_run_copies_nothing(tmp_path: Path) -> None:
    source = copy_of_golden(tmp_path / "java")
    target = posix(tmp_path)
    moved(source, target)
    before = picture(next(Path(target.path).glob("*_GoldenCluster")))
    again = moved(source, target)
    assert (again.counts["copied"], again.counts["compared"]) == (0, 0)
    assert moved(source, target, cut_over=True).counts["copied"] == 0
    last = moved(source, target, cut_over=True)
    assert last.counts["copied"] == 0
    assert last.facts["cut_over"] == "done before"
    assert before == picture(next(Path(target.path).glob("*_GoldenCluster")))


def test_without_its_journal_it_compares_and_copies_nothing(tmp_path: Path) -> None:
    target = posix(tmp_path)
    moved(golden_config(), target)
    Path(f"{target.catalogue_path}.migration").unlink()
    before = picture(tmp_path / "tiered")
    again = moved(golden_config(), target)
    assert again.counts["copied"] == 0
    assert again.counts["compared"] == len(files(golden_config()))
    assert picture(tmp_path / "tiered") == before


def test_a_dry_run_makes_no_file(tmp_path: Path) -> None:
    report = moved(golden_config(), posix(tmp_path), dry_run=True, cut_over=True)
    assert report.state is JobState.PLANNED
    assert report.counts["to_copy"] == len(files(golden_config()))
    assert report.byte_counts["to_copy"] == sum(map(len, files(golden_config()).values()))
    assert not list(tmp_path.iterdir())


def test_the_new_names_are_those_that_were_asked_for(tmp_path: Path) -> None:
    source = copy_of_golden(tmp_path / "java")
    target = posix(tmp_path, broker_name="broker-new", cluster_name="NewCluster")
    moved(source, target, rename_broker="broker-new", rename_cluster="NewCluster", cut_over=True)
    assert list(files(target).values()) == list(files(golden_config()).values())
    assert all(name.startswith("broker-new/") for name in files(target))
    assert any(path.name.endswith("_NewCluster") for path in Path(target.path).iterdir())
    with TieredReader(golden_config()) as old, TieredReader(target) as new:
        assert new.queues() == old.queues()
        found = new.get_message("GoldAa", 0, 0, count_max=5)
        assert found.messages == old.get_message("GoldAa", 0, 0, count_max=5).messages


def test_only_the_topics_that_were_asked_for_are_moved(tmp_path: Path) -> None:
    source = copy_of_golden(tmp_path / "java")
    target = posix(tmp_path)
    moved(source, target, topics=["GoldA*"], cut_over=True)
    with TieredReader(target) as reader:
        assert [each.topic for each in reader.topics()] == ["GoldAa"]
        assert {key.topic for key in reader.queues()} == {"GoldAa"}
    topics = {name.split("/")[1] for name in files(target)}
    assert topics == {"GoldAa", "rmq_sys_INDEX"}


def test_what_a_cut_over_left_out_is_told(tmp_path: Path) -> None:
    source, target = copy_of_golden(tmp_path / "java"), posix(tmp_path)
    moved(source, target, topics=["GoldA*"], cut_over=True)
    with pytest.raises(InvalidConfigError, match=r"cut over before, and without [^ ]+/0, "):
        moved(source, target, cut_over=True)
    assert moved(source, target, topics=["GoldAa"]).facts["cut_over"] == "done before"


def test_after_the_cut_over_the_target_needs_no_file_of_its_catalogue(tmp_path: Path) -> None:
    source, target = copy_of_golden(tmp_path / "java"), posix(tmp_path)
    moved(source, target, cut_over=True)
    elsewhere = replace(target, store_path=str(tmp_path / "elsewhere"))
    with TieredReader(elsewhere) as reader:
        assert len(reader.queues()) == 9


def test_what_is_only_published_can_be_copied_and_not_cut_over(tmp_path: Path) -> None:
    source, first = copy_of_golden(tmp_path / "java"), posix(tmp_path / "first")
    moved(source, first, cut_over=True)
    lost = replace(first, store_path=str(tmp_path / "lost"))
    second = posix(tmp_path / "second")
    assert moved(lost, second).counts["copied"] == 57
    assert files(second) == files(golden_config())
    with pytest.raises(InvalidConfigError, match="the broker's own catalogue, and not the"):
        moved(lost, second, cut_over=True)
    with pytest.raises(InvalidConfigError, match="is published there"):
        moved(source, lost)

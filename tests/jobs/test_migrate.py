"""A tier moved to another directory: same files, same answers; another broker's queues adopted."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.cli.cli_kit import Command
from tests.cli.tier_kit import CATALOGUE, TIER, copied, named
from tests.codec.golden_files import expected
from tests.jobs.growing_tier import broker_on, everything, tier_at
from tests.jobs.job_kit import (
    copy_of_golden,
    files,
    golden_config,
    kinds,
    moved,
    picture,
    posix,
    verified,
)
from tests.jobs.load_kit import bodies, keys_read, loaded, names_of, rows_of
from tests.jobs.written_tier import posix_config
from tieredstore.access.audit import audit
from tieredstore.access.log_mark import LOG_MARK, LogMark
from tieredstore.access.queue_upload import STOPPED_QUEUE
from tieredstore.access.reader import TieredReader
from tieredstore.access.tables import BrokerTables
from tieredstore.cli import submit
from tieredstore.codec.broker_tables import TopicConfig
from tieredstore.driver.runtime import Runtime
from tieredstore.flat.message_file import LOG_START_NOTE, log_start
from tieredstore.index.watermarks import Watermarks
from tieredstore.jobs import migrate
from tieredstore.jobs.job import JobExit, JobState
from tieredstore.metadata.json_store import JsonMetadataStore
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import BackendRefusedError, InvalidConfigError
from tieredstore.model.findings import Severity
from tieredstore.model.values import QueueKey
from tieredstore.providers.posix import PosixProvider
from tieredstore.roundlog import log, upkeep


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
    assert {name: after[name] for name in before} == before  # only a lock file is new


def test_every_message_and_key_is_found_in_the_copy(tmp_path: Path) -> None:
    source = copy_of_golden(tmp_path / "java")
    target = posix(tmp_path)
    moved(source, target, cut_over=True)
    # An index file that is not uploaded belongs to the broker, and stays with it.
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


@pytest.mark.parametrize("adopt", [False, True])
def test_a_cut_over_leaves_nothing_in_the_source(tmp_path: Path, adopt: bool) -> None:
    source, target = copy_of_golden(tmp_path / "java"), posix(tmp_path)
    before = picture(tmp_path / "java")
    moved(source, target, cut_over=True, adopt=adopt)
    assert picture(tmp_path / "java") == before
    lock = Path(f"{source.catalogue_path}.lock")
    lock.touch()  # from a broker that ran on this tier
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


def test_a_bucket_is_moved_into_whatever_its_log_has_got(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each copy is an entry. The driver follows them, and writes states, so that no run and no
    worker reads the entries of all copies."""
    monkeypatch.setattr(log, "MEETINGS_MAX", 20)
    monkeypatch.setattr(upkeep, "STATE_EVERY", 16)
    monkeypatch.setattr(migrate, "TENDED_EVERY", 8)
    source = posix_config(tmp_path / "source", index_enabled=False)
    url = f"memory://{tmp_path.name}-{id(tmp_path)}"
    target = posix_config(
        tmp_path / "target", provider="fsspec", path="", url=url, index_enabled=False
    )
    queues = [QueueKey("orders", number) for number in range(4)]
    read = keys_read(monkeypatch)
    for number in range(24):
        rows = [rows_of(queue, range(number, number + 1)) for queue in queues]
        loaded(source, [rows], run_id=f"run-{number}")
        if number in (11, 23):
            assert moved(source, target, cut_over=number == 23).state is JobState.DONE
    read.clear()
    with TieredReader(target) as reader:
        assert reader.queues() == queues
    assert 0 < len({key for key in read if "/log/" in key}) <= 16 + 8 + 4
    for queue in queues:
        assert bodies(target, queue) == names_of(queue, range(24))


def test_only_the_topics_that_were_asked_for_are_moved(tmp_path: Path) -> None:
    source = copy_of_golden(tmp_path / "java")
    target = posix(tmp_path)
    moved(source, target, topics=["GoldA*"], cut_over=True)
    with TieredReader(target) as reader:
        assert [each.topic for each in reader.topics()] == ["GoldAa"]
        assert {key.topic for key in reader.queues()} == {"GoldAa"}
    topics = {name.split("/")[1] for name in files(target)}
    assert topics == {"GoldAa", "rmq_sys_INDEX"}
    with pytest.raises(InvalidConfigError, match=r"cut over before, and without [^ ]+/0, "):
        moved(source, target, cut_over=True)
    assert moved(source, target, topics=["GoldAa"]).facts["cut_over"] == "done before"


@pytest.mark.parametrize("topics", [(), ("GoldA*",)])
def test_consumer_offsets_and_topics_move_with_their_tier(
    tmp_path: Path, topics: tuple[str, ...]
) -> None:
    source, target = copy_of_golden(tmp_path / "java"), posix(tmp_path)
    with JsonMetadataStore.open(source.catalogue_path) as metadata:
        tables = BrokerTables(source, metadata, Runtime.inline())
        tables.load()
        for topic in ("GoldAa", "GoldBB", "Untiered"):
            tables.consumer_offsets.commit("group", topic, 0, 7)
            tables.topic_table.put(TopicConfig(name=topic))
        assert tables.stage()
    moved(source, target, topics=topics, cut_over=True)
    new = replace(target, store_path=str(tmp_path / "new-disk"))
    with JsonMetadataStore.open(target.catalogue_path) as metadata:
        tables = BrokerTables(new, metadata, Runtime.inline())
        tables.load()
        found = {key.topic for key in tables.consumer_offsets.of_group("group")}
        assert found == {topic.name for topic in tables.topic_table.all()}
        assert found == ({"GoldAa"} if topics else {"GoldAa", "GoldBB", "Untiered"})


@pytest.mark.parametrize("topics", [(), ("GoldA*",)])
def test_a_topic_that_comes_in_the_copy_gets_no_number_that_another_had(
    tmp_path: Path, topics: tuple[str, ...]
) -> None:
    """The index of the copy still has that number for the deleted topic."""
    source, target = copy_of_golden(tmp_path / "java"), posix(tmp_path)
    with JsonMetadataStore.open(source.catalogue_path) as metadata:
        gone = metadata.add_topic("Gone")
        metadata.delete_topic("Gone")
    moved(source, target, topics=topics, cut_over=True)
    with JsonMetadataStore.open(target.catalogue_path) as metadata:
        assert metadata.add_topic("New").topic_id == gone.topic_id + 1
        assert metadata.topic("Gone") is None


def test_a_load_that_is_in_the_tier_is_not_made_again_in_its_copy(tmp_path: Path) -> None:
    source, target = posix_config(tmp_path / "old"), posix_config(tmp_path / "new")
    key = QueueKey("orders", 0)
    for config, run_id in ((source, "one"), (target, "two")):
        loaded(config, [[rows_of(key, range(20))]], run_id=run_id, load_id="november")
        if config is source:
            moved(source, target, cut_over=True)
    assert bodies(target, key) == names_of(key, range(20))


def test_a_log_that_is_lost_behind_the_move_goes_on_where_no_message_id_was(tmp_path: Path) -> None:
    source, target = copy_of_golden(tmp_path / "java"), posix(tmp_path)
    with JsonMetadataStore.open(source.catalogue_path) as metadata:
        metadata.put_note(LOG_MARK, source.broker_name, 1 << 40)
        metadata.put_note(LOG_START_NOTE, f"{source.broker_name}/GoldAa/7", 1_000)
    moved(source, target, cut_over=True, rename_broker="broker-new")
    with JsonMetadataStore.open(target.catalogue_path) as metadata:
        assert LogMark(metadata, "broker-new").below([]) == 1 << 40
        assert log_start("broker-new/GoldAa/7", metadata) == 1_000


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


@pytest.fixture
def adopted(tmp_path: Path) -> tuple[StoreConfig, StoreConfig]:
    """A tier whose broker is gone, and one that may take its queues."""
    gone, target = tier_at(tmp_path / "gone", broker="broker-b"), tier_at(tmp_path / "tier")
    with broker_on(gone) as broker:
        broker.put(20, topic="Orders")
        broker.put(30, topic="Orders", queue_id=1)
    with broker_on(target) as broker:
        broker.put(10, topic="Other")
    return gone, target


def test_another_brokers_queues_are_adopted_as_history(
    adopted: tuple[StoreConfig, StoreConfig],
) -> None:
    gone, target = adopted
    lines = moved(gone, target, adopt=True).lines
    assert any("nothing is adopted yet" in line and "--cut-over" in line for line in lines)
    for _ in range(2):  # the second run changes nothing
        report = moved(gone, target, adopt=True, cut_over=True)
        assert report.exit_code is JobExit.DONE
        assert not any("nothing is adopted yet" in line for line in report.lines)
    found = everything(target)
    assert {key: len(each) for key, each in found.items()} == {
        QueueKey("Orders", 0): 20,
        QueueKey("Orders", 1): 30,
        QueueKey("Other", 0): 10,
    }
    assert found[QueueKey("Orders", 1)] == everything(gone)[QueueKey("Orders", 1)]
    with JsonMetadataStore.open(target.catalogue_path, read_only=True) as metadata:
        note: Any = metadata.note(STOPPED_QUEUE, "broker-a/Orders/0")
        assert "history of broker broker-b" in note["reason"]
        numbers = [record.topic_id for record in metadata.topics()]
        assert len(set(numbers)) == len(numbers) == 2


def test_adopted_history_is_a_note_to_those_who_look_for_damage(
    adopted: tuple[StoreConfig, StoreConfig],
) -> None:
    gone, target = adopted
    moved(gone, target, adopt=True, cut_over=True)
    report = verified(target)
    assert kinds(report) == {"adopted-history", "tags-code"}  # tags codes here are numbers
    found, _ = [each for each in report.findings if each.kind == "adopted-history"]
    assert (found.severity, found.where) == (Severity.NOTE, "broker-a/Orders/0")
    assert "history of broker broker-b" in found.detail
    with JsonMetadataStore.open(target.catalogue_path) as metadata:
        runtime = Runtime.inline()
        provider = PosixProvider.from_config(target, runtime)
        looked = audit(metadata, provider, target, runtime)
        assert [each.kind for each in looked.findings] == ["adopted-history"] * 2
        assert looked.is_clean
        metadata.put_note(STOPPED_QUEUE, "broker-a/Orders/0", {"reason": "another one"})
    assert "stopped-queue" in kinds(verified(target))


def test_queues_that_both_hold_are_all_named_and_nothing_is_adopted(
    adopted: tuple[StoreConfig, StoreConfig],
) -> None:
    gone, target = adopted
    with broker_on(gone) as broker:
        broker.put(2, topic="Alone")
    with broker_on(target) as broker:
        for queue_id in (0, 1):
            broker.put(2, topic="Orders", queue_id=queue_id)
    before = files(target)
    with pytest.raises(InvalidConfigError, match="both brokers have: Orders/0, Orders/1; nothing"):
        moved(gone, target, adopt=True, cut_over=True)
    assert files(target) == before


def test_nothing_is_adopted_into_a_tier_with_a_live_broker(
    adopted: tuple[StoreConfig, StoreConfig],
) -> None:
    gone, target = adopted
    with broker_on(target), pytest.raises(BackendRefusedError, match="stop it first"):
        moved(gone, target, adopt=True, cut_over=True)


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(capsys)


def to(place: Path) -> list[str]:
    return [
        *("--to-provider", "posix", "--to-path", str(place / "tiered")),
        *("--to-catalogue-file", str(place / "store/config/tieredStoreMetadata.json")),
    ]


def test_the_plan_is_told_first_and_a_dry_run_ends_there(command: Command, tmp_path: Path) -> None:
    ran = command.run("migrate", *named(TIER), *to(tmp_path), "--dry-run")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.splitlines() == [
        "57 segments of 9 queues, 338.7 KiB",
        "to copy: 57 segments, 338.7 KiB",
    ]
    assert not list(tmp_path.iterdir())


def test_for_programs_the_plan_and_the_report_are_a_line_each(
    command: Command, tmp_path: Path
) -> None:
    report = tmp_path / "report.json"
    words = ["migrate", *named(TIER), *to(tmp_path / "new"), "--json", "--report", report]
    ran = command.run(*words)
    assert (ran.code, ran.err) == (0, "")
    plan, done = ran.rows
    assert (plan["what"], plan["bytes"]["to_copy"]) == ("plan", 346788)
    assert (done["what"], done["state"], done["counts"]["copied"]) == ("report", "done", 57)
    assert json.loads(report.read_text()) == {
        name: value for name, value in done.items() if name != "what"
    }


def test_a_report_that_has_no_place_is_told_before_the_work(
    command: Command, tmp_path: Path
) -> None:
    words = ["migrate", *named(TIER), *to(tmp_path / "new"), "--report", tmp_path / "no/r.json"]
    ran = command.run(*words)
    assert (ran.code, ran.out) == (3, "")
    assert ran.err == f"tieredstore: no such directory: --report {tmp_path}/no/r.json\n"
    assert not list(tmp_path.iterdir())


def test_the_cut_over_prints_settings_that_open_the_target(
    command: Command, tmp_path: Path
) -> None:
    root, new = copied(tmp_path / "old"), tmp_path / "new"
    ran = command.run("migrate", *named(root), *to(new), "--cut-over")
    assert ran.code == 0
    settings = tmp_path / "printed.toml"
    settings.write_text(ran.out[ran.out.index("[tieredstore]") :])
    with TieredReader(StoreConfig.from_file(settings)) as reader:
        assert len(reader.queues()) == 9
    assert files(posix(new)) == files(golden_config())


@pytest.mark.parametrize("is_javas", [True, False])
def test_the_settings_that_are_printed_are_those_that_the_tier_was_made_with(
    command: Command, tmp_path: Path, is_javas: bool
) -> None:
    root, new = copied(tmp_path / "old"), tmp_path / "new"
    if not is_javas:
        with JsonMetadataStore.open(root / CATALOGUE) as metadata:
            metadata.apply([Watermarks.sizes(slot_count=64, item_capacity=300)])
    words = [*named(root, index_slots=None, index_items=None), *to(new)]
    assert "--index-slots" not in words
    for run in range(2):  # the second run finds that the cut-over is done
        ran = command.run("migrate", *words, "--cut-over", "--report", tmp_path / f"{run}.json")
        assert ran.code == 0
        told = json.loads((tmp_path / f"{run}.json").read_text())["facts"]["config"]
        if run == 0:
            assert told in ran.out
        settings = tmp_path / "printed.toml"
        settings.write_text(told)
        found = StoreConfig.from_file(settings)
        assert found.index_slot_count == 64
        assert is_javas or found.index_item_count == 300


def test_settings_in_files_name_both_sides(command: Command, tmp_path: Path) -> None:
    old, new = tmp_path / "old.conf", tmp_path / "new.toml"
    old.write_text(
        "brokerClusterName=GoldenCluster\nbrokerName=broker-gold-a\n"
        "tieredBackendServiceProvider=org.apache.rocketmq.tieredstore.provider.PosixFileSegment\n"
        f"tieredStoreFilePath={TIER}/tiered\nstorePathRootDir={TIER}/store\n"
        "tieredStoreIndexFileMaxHashSlotNum=64\ntieredStoreIndexFileMaxIndexNum=300\n"
    )
    new.write_text(
        f'provider = "posix"\npath = "{tmp_path}/tiered"\nstore_path = "{tmp_path}/store"\n'
        "index_slot_count = 64\nindex_item_count = 300\n"
    )
    assert command.run("migrate", "--config", old, "--to-config", new).code == 0
    assert files(posix(tmp_path)) == files(golden_config())


@pytest.mark.parametrize(
    ("code", "words", "told"),
    [
        (2, [], "where to? Name it with --to-config FILE"),
        (2, ["--to-provider", "posix", "--to-path", "x"], "--to-catalogue-file FILE"),
        (3, ["--to-config", "no.toml"], "no such file: no.toml"),
        (3, ["TO", "--topic", "nix"], "no topic is called 'nix'; there are: %RETRY%gold_group"),
        (2, ["TO", "--engine", "hadoop"], "--engine"),
        (2, ["TO", "--adopt", "--rename-broker", "x"], "--rename is for a move"),
        (2, ["SAME"], "source and target are the same tier"),
    ],
)
def test_a_mistake_is_one_line_and_a_code(
    command: Command, tmp_path: Path, code: int, words: list[str], told: str
) -> None:
    where = {
        "TO": to(tmp_path),
        "SAME": [
            *("--to-provider", "posix", "--to-path", str(TIER / "tiered")),
            *("--to-catalogue-file", str(tmp_path / "new.json")),
        ],
    }
    spread = [each for word in words for each in where.get(word, [word])]
    ran = command.run("migrate", *named(TIER), *spread)
    assert (ran.code, ran.out) == (code, "")
    assert told in ran.err
    assert len(ran.err.splitlines()) == 1


def test_a_root_that_is_not_there_is_told(command: Command, tmp_path: Path) -> None:
    ran = command.run("migrate", *named(TIER, path=tmp_path / "nowhere"), *to(tmp_path))
    assert (ran.code, len(ran.err.splitlines())) == (3, 1)
    assert "no such directory: " in ran.err


def test_a_catalogue_that_is_not_there_is_told(command: Command, tmp_path: Path) -> None:
    missing = tmp_path / "missing.json"
    ran = command.run("migrate", *named(TIER, catalogue_file=missing), *to(tmp_path / "new"))
    assert ran.code != 0
    assert len(ran.err.splitlines()) == 1
    assert str(missing) in ran.err
    assert not (tmp_path / "new").exists()


def test_a_live_broker_is_refused_in_one_line(command: Command, tmp_path: Path) -> None:
    source = tier_at(tmp_path / "old")
    words = [
        *("migrate", "--provider", "posix", "--path", source.path, "--broker", "broker-a"),
        *("--store-path", source.store_path, *to(tmp_path / "new"), "--cut-over"),
    ]
    with broker_on(source) as broker:
        broker.put(3)
        ran = command.run(*words)
    assert (ran.code, ran.out, len(ran.err.splitlines())) == (5, "", 1)
    assert "a broker is running on this store: stop it first" in ran.err
    assert not (tmp_path / "new/store").exists()
    assert command.run(*words).code == 0


def test_the_script_for_spark_has_the_same_words(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A dry run does not wait for a JVM."""
    assert submit.main(["migrate", *named(TIER), *to(tmp_path), "--dry-run"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "57 segments of 9 queues, 338.7 KiB"

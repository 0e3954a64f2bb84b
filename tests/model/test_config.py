"""Settings: names, defaults, ranges."""

from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import pytest

from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import InvalidConfigError
from tieredstore.model.settings import facts_of, settings_of
from tieredstore.model.values import StorageLevel

MIB = 1024 * 1024

# Section 10 of RocketMQ's facts: key, our name, default. None: computed from the machine.
JAVA_DEFAULTS: list[tuple[str, str, Any]] = [
    ("brokerName", "broker_name", None),
    ("brokerClusterName", "cluster_name", "DefaultCluster"),
    ("tieredStorageLevel", "storage_level", StorageLevel.NOT_IN_DISK),
    ("storePathRootDir", "store_path", None),
    ("messageIndexEnable", "index_enabled", True),
    ("recordGetMessageResult", "record_get_message_result", False),
    ("tieredStoreCommitLogMaxSize", "commit_log_segment_bytes", 1073741824),
    ("tieredStoreConsumeQueueMaxSize", "consume_queue_segment_bytes", 104857600),
    ("tieredStoreIndexFileMaxHashSlotNum", "index_slot_count", 5000000),
    ("tieredStoreIndexFileMaxIndexNum", "index_item_count", 20000000),
    ("tieredMetadataServiceProvider", "metadata", "json"),
    ("tieredBackendServiceProvider", "provider", "memory"),
    ("tieredStoreDeleteFileEnable", "expiry_enabled", True),
    ("tieredStoreFileReservedTime", "reserve_hours", 72),
    ("tieredStoreDeleteFileInterval", "expiry_interval_ms", 3600000),
    ("commitLogRollingInterval", "commit_log_rolling_hours", 24),
    ("commitLogRollingMinimumSize", "commit_log_rolling_min_bytes", 16777216),
    ("tieredStoreGroupCommit", "group_commit_enabled", True),
    ("tieredStoreGroupCommitTimeout", "group_commit_timeout_ms", 30000),
    ("tieredStoreGroupCommitCount", "group_commit_count", 4096),
    ("tieredStoreGroupCommitSize", "group_commit_bytes", 4194304),
    ("tieredStoreMaxGroupCommitCount", "buffered_count_max", 10000),
    ("readAheadCacheEnable", "read_ahead_enabled", True),
    ("readAheadMessageCountThreshold", "read_ahead_count", 4096),
    ("readAheadMessageSizeThreshold", "read_ahead_bytes", 16777216),
    ("readAheadCacheExpireDuration", "read_ahead_ms", 15000),
    ("tieredStoreMaxPendingLimit", "pending_count_max", 10000),
    ("tieredStoreCrcCheckEnable", "crc_check_enabled", None),  # False, and ignored
    ("tieredStoreFilePath", "path", ""),
    ("objectStoreEndpoint", "endpoint", ""),
    ("objectStoreBucket", "bucket", ""),
    ("objectStoreAccessKey", "access_key", ""),
    ("objectStoreSecretKey", "secret_key", ""),
    ("messageStorePlugIn", "plugins", ()),
]


class TestNamesAndDefaults:
    def test_every_java_key_has_a_name_here_and_the_same_default(self) -> None:
        specs = settings_of(StoreConfig)
        ours = {facts_of(spec).java: name for name, spec in specs.items() if facts_of(spec).java}
        assert ours == {java: name for java, name, _ in JAVA_DEFAULTS}
        config = StoreConfig()
        for _, name, default in JAVA_DEFAULTS:
            if default is not None:
                assert getattr(config, name) == default, name
        assert config.broker_name
        assert config.store_path.endswith("/store")

    def test_the_caches_are_sizes_of_their_own(self) -> None:
        config = StoreConfig()
        assert config.read_cache_bytes == config.dispatch_buffer_bytes == 256 * MIB

    def test_bodies_are_checked_where_that_costs_little_unless_it_is_said(self) -> None:
        asked = [(None, (False, True)), (True, (True, True)), (False, (False, False))]
        for setting, answers in asked:
            config = StoreConfig(crc_check_enabled=setting)
            assert (config.checks_pages, config.checks_bulk_reads) == answers
        for text, wanted in [("true", True), ("False", False)]:
            config = StoreConfig().with_env({"TIEREDSTORE_CRC_CHECK_ENABLED": text})
            assert config.crc_check_enabled is wanted
        with pytest.raises(InvalidConfigError, match="crc_check_enabled: want bool, not 'no'"):
            StoreConfig(crc_check_enabled="no")  # type: ignore[arg-type]

    def test_every_setting_says_what_it_is_for(self) -> None:
        for name, spec in settings_of(StoreConfig).items():
            assert facts_of(spec).doc, name

    def test_it_can_be_copied_with_changes_and_sent_to_another_process(self) -> None:
        config = StoreConfig(provider="posix", secret_key="s", ignored={"brokerId": "0"})
        assert pickle.loads(pickle.dumps(config)) == config  # noqa: S301 - made here
        changed = dataclasses.replace(config, reserve_hours=1)
        assert (changed.provider, changed.reserve_hours) == ("posix", 1)
        assert changed.ignored == {"brokerId": "0"}

    def test_it_cannot_be_changed(self) -> None:
        with pytest.raises(dataclasses.FrozenInstanceError):
            StoreConfig().provider = "posix"  # type: ignore[misc]

    def test_the_catalogue_lies_where_java_looks_for_it(self) -> None:
        config = StoreConfig(store_path="/srv/store")
        assert config.catalogue_path == "/srv/store/config/tieredStoreMetadata.json"
        assert StoreConfig(metadata_path="/else.json").catalogue_path == "/else.json"


class TestChecks:
    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("group_commit_count", 0),
            ("group_commit_count", -1),
            ("group_commit_count", 1 << 63),
            ("reserve_hours", -1),
            ("consume_queue_segment_bytes", 19),
            ("index_slot_count", 0),
            ("index_slot_count", 1 << 30),
            ("index_item_count", 1),
            ("group_commit_count", "many"),
            ("group_commit_count", 1.5),
            ("group_commit_count", True),
            ("group_commit_enabled", 1),
            ("initial_offset", "latest"),
            ("initial_offset", ""),
            ("dispatch_interval_ms", 0),
            ("provider", 3),
            ("path", None),
            ("path", "a\0b"),
            ("storage_level", "SOMETIMES"),
            ("storage_level", 4),
            ("storage_level", None),
            ("storage_level", 1.9),
            ("storage_level", True),
            ("broker_name", ""),
            ("broker_name", ".."),
            ("cluster_name", "a/b"),
            ("index_item_count", 67_000_000),
            ("plugins", 3),
            ("plugins", [1]),
        ],
    )
    def test_a_wrong_value_is_an_error_that_names_the_setting(
        self, name: str, value: object
    ) -> None:
        with pytest.raises(InvalidConfigError, match=f"^{name}: "):
            StoreConfig.from_mapping({name: value})

    @pytest.mark.parametrize("level", ["NOT_IN_MEM", "not_in_mem", " 2 ", 2, StorageLevel(2)])
    def test_a_level_is_a_name_or_a_number(self, level: object) -> None:
        config = StoreConfig.from_mapping({"storage_level": level})
        assert config.storage_level is StorageLevel.NOT_IN_MEM

    def test_levels_compare(self) -> None:
        order = [StorageLevel[name] for name in ("DISABLE", "NOT_IN_DISK", "NOT_IN_MEM", "FORCE")]
        assert order == sorted(StorageLevel)

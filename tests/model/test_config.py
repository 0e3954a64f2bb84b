"""Settings: names, defaults, ranges and sources."""

from __future__ import annotations

import dataclasses
import pickle
import time
from pathlib import Path
from typing import Any

import pytest

from tieredstore.local.config import LocalConfig
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import InvalidConfigError
from tieredstore.model.settings import facts_of, settings_of
from tieredstore.model.values import StorageLevel

MIB = 1024 * 1024
# Key, our name and default, from section 10 of RocketMQ's facts. None: computed from the machine.
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
    ("flushConsumerOffsetInterval", "tables_interval_ms", 5000),
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
    ("tieredStoreCrcCheckEnable", "crc_check_enabled", None),  # False in RocketMQ, which ignores it
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
            ("broker_name", "a\\b"),
            ("broker_name", "b" * 256),
            ("cluster_name", "a/b"),
            ("cluster_name", "c" * 247),
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


def write(directory: Path, name: str, text: str) -> Path:
    file = directory / name
    file.write_text(text, encoding="utf-8")
    return file


class TestMapping:
    def test_an_unknown_key_is_an_error_that_suggests_the_nearest(self) -> None:
        with pytest.raises(InvalidConfigError, match="did you mean group_commit_bytes"):
            StoreConfig.from_mapping({"group_comit_bytes": 1})
        with pytest.raises(InvalidConfigError, match="unknown key zzz$"):
            StoreConfig.from_mapping({"zzz": 1})
        with pytest.raises(InvalidConfigError, match="did you mean provider"):
            StoreConfig(provder="posix")  # type: ignore[call-arg]
        with pytest.raises(InvalidConfigError, match="unknown key ignored"):
            StoreConfig.from_mapping({"ignored": {}})

    def test_a_chain_of_plugins_is_a_list_or_a_text(self) -> None:
        text = StoreConfig.from_mapping({"plugins": "my.Store, tiered"})
        many = StoreConfig.from_mapping({"plugins": ["my.Store", "tiered"]})
        assert text.plugins == many.plugins == ("my.Store", "tiered")


class TestToml:
    def test_a_table_of_its_own_or_the_whole_file(self, tmp_path: Path) -> None:
        whole = write(tmp_path, "a.toml", 'provider = "posix"\nreserve_hours = 1\n')
        table = write(
            tmp_path,
            "b.toml",
            '[other]\nx = 1\n[tieredstore]\nprovider = "posix"\nreserve_hours = 1\n',
        )
        assert StoreConfig.from_toml(whole) == StoreConfig.from_file(table)
        assert StoreConfig.from_toml(table).reserve_hours == 1

    @pytest.mark.parametrize(
        "text",
        [
            "provider = ",
            "tieredstore = 3",
            "provder = 'x'",
            "\0",
            "x = " + "[" * 100_000,
            "reserve_hours = " + "1" * 5000,
        ],
    )
    def test_an_error_names_the_file(self, tmp_path: Path, text: str) -> None:
        file = write(tmp_path, "bad.toml", text)
        with pytest.raises(InvalidConfigError, match=r"bad\.toml: "):
            StoreConfig.from_toml(file)

    def test_relative_paths_mean_the_folder_of_the_file(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        text = "[tieredstore]\npath = 'tier'\nmetadata_path = '/c.json'\nbucket = 'b'\n"
        write(tmp_path, "t.toml", text + "store_path = '../s'\n[local]\nstore_path = 'l'\n")
        monkeypatch.chdir(tmp_path)
        for named in (tmp_path / "t.toml", Path("t.toml")):
            config = StoreConfig.from_file(named)
            assert (config.path, config.metadata_path) == (f"{tmp_path}/tier", "/c.json")
            assert (config.store_path, config.bucket) == (f"{tmp_path}/../s", "b")
            assert LocalConfig.from_file(named).store_path == f"{tmp_path}/l"
        assert StoreConfig.from_toml(write(tmp_path, "empty.toml", "")) == StoreConfig()
        conf = write(tmp_path, "broker.conf", "brokerName=a\nstorePathRootDir=s\n")
        assert StoreConfig.from_file(conf).store_path == "s"  # RocketMQ reads it so

    def test_one_of_several_tiers_is_whole_in_itself(self, tmp_path: Path) -> None:
        text = "[tier.a]\nbucket = 'of-a'\n[tier.b]\nprefix = 'x'\npath = 'p'\n"
        file = write(tmp_path, "t.toml", text)
        assert StoreConfig.from_toml(file, tier="a").bucket == "of-a"
        found = StoreConfig.from_toml(file, tier="b")
        assert (found.bucket, found.prefix, found.path) == ("", "x", f"{tmp_path}/p")
        with pytest.raises(InvalidConfigError, match=r"t\.toml: no tier 'c' is in it.*: a, b"):
            StoreConfig.from_file(file, tier="c")
        conf = write(tmp_path, "broker.conf", BROKER_CONF)
        with pytest.raises(InvalidConfigError, match=r"broker\.conf: .* is about one tier"):
            StoreConfig.from_file(conf, tier="a")
        with pytest.raises(InvalidConfigError, match="which of its tiers.*: a, b"):
            StoreConfig.from_toml(file)
        both = write(tmp_path, "both.toml", "bucket = 'c'\n" + text)
        assert StoreConfig.from_toml(both).bucket == "c"
        for wrong in ("tier = 3", "[tier]\na = 3"):
            with pytest.raises(InvalidConfigError, match="is no table"):
                StoreConfig.from_toml(write(tmp_path, "w.toml", wrong), tier="a")

    def test_a_missing_or_binary_or_huge_file_is_one_clear_error(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidConfigError, match="^no such file: .*none.toml$"):
            StoreConfig.from_toml(tmp_path / "none.toml")
        (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
        with pytest.raises(InvalidConfigError, match="UTF-8"):
            StoreConfig.from_toml(tmp_path / "binary.toml")
        write(tmp_path, "huge.toml", "#" * (2 * MIB))
        with pytest.raises(InvalidConfigError, match="larger"):
            StoreConfig.from_toml(tmp_path / "huge.toml")


class TestEnvironment:
    def test_variables_are_laid_over_other_settings(self) -> None:
        base = StoreConfig(provider="posix", reserve_hours=1)
        config = base.with_env(
            {
                "TIEREDSTORE_RESERVE_HOURS": "48",
                "TIEREDSTORE_INDEX_ENABLED": "False",
                "TIEREDSTORE_STORAGE_LEVEL": "force",
                "HOME": "/nowhere",
            }
        )
        assert (config.provider, config.reserve_hours) == ("posix", 48)
        assert config.index_enabled is False
        assert config.storage_level is StorageLevel.FORCE
        assert StoreConfig.from_env({"TIEREDSTORE_PROVIDER": "posix"}).provider == "posix"

    def test_variables_of_the_local_store_are_its_own(self) -> None:
        environ = {
            "TIEREDSTORE_PROVIDER": "posix",
            "TIEREDSTORE_LOCAL_FLUSH_DISK_TYPE": "SYNC_FLUSH",
            "TIEREDSTORE_S3_ENDPOINT": "http://127.0.0.1:1",
            "TIEREDSTORE_CONFIG": "any.toml",
            "TIEREDSTORE_TIER": "prod",
        }
        assert StoreConfig.from_env(environ).provider == "posix"
        assert LocalConfig.from_env(environ).sync_flush

    def test_an_unknown_variable_is_an_error_that_suggests_the_nearest(self) -> None:
        with pytest.raises(InvalidConfigError, match="did you mean TIEREDSTORE_PROVIDER"):
            StoreConfig.from_env({"TIEREDSTORE_PROVIDR": "posix"})

    @pytest.mark.parametrize("text", ["", "1e3", "0x10", "ten", "1.0"])
    def test_a_number_must_be_whole(self, text: str) -> None:
        with pytest.raises(
            InvalidConfigError, match="^TIEREDSTORE_RESERVE_HOURS: .*want a whole number"
        ):
            StoreConfig.from_env({"TIEREDSTORE_RESERVE_HOURS": text})

    @pytest.mark.parametrize("text", ["", "1", "yes"])
    def test_a_switch_must_be_true_or_false(self, text: str) -> None:
        with pytest.raises(
            InvalidConfigError, match="^TIEREDSTORE_INDEX_ENABLED: .*want true or false"
        ):
            StoreConfig.from_env({"TIEREDSTORE_INDEX_ENABLED": text})


BROKER_CONF = """\
# a broker as operators write it
brokerClusterName = GoldenCluster
brokerName=broker-gold-a
brokerId = 0
deleteWhen : 04
! another comment
messageStorePlugIn=org.apache.rocketmq.tieredstore.TieredMessageStore
tieredBackendServiceProvider=org.apache.rocketmq.tieredstore.provider.PosixFileSegment
tieredMetadataServiceProvider=org.apache.rocketmq.tieredstore.metadata.DefaultMetadataStore
tieredStoreFilePath=/data/tier
tieredStorageLevel=2
tieredStoreGroupCommit=false
readAheadCacheSizeThresholdRate=0.3
readAheadCacheCreateExpireDuration=180000
messageIndexSafe=true
storePathRootDir=/data/\\
  store
"""


class TestBrokerConf:
    def test_java_keys_and_class_names_become_ours(self, tmp_path: Path) -> None:
        config = StoreConfig.from_broker_conf(write(tmp_path, "broker.conf", BROKER_CONF))
        assert config.cluster_name == "GoldenCluster"
        assert config.broker_name == "broker-gold-a"
        assert config.plugins == ("tiered",)
        assert config.provider == "posix"
        assert config.metadata == "json"
        assert config.path == "/data/tier"
        assert config.storage_level is StorageLevel.NOT_IN_MEM
        assert config.group_commit_enabled is False
        assert config.store_path == "/data/store"

    def test_foreign_keys_are_kept_apart(self, tmp_path: Path) -> None:
        config = StoreConfig.from_file(write(tmp_path, "broker.conf", BROKER_CONF))
        assert config.ignored == {
            "brokerId": "0",
            "deleteWhen": "04",
            "readAheadCacheSizeThresholdRate": "0.3",
            "readAheadCacheCreateExpireDuration": "180000",
            "messageIndexSafe": "true",
        }

    @pytest.mark.parametrize(
        ("key", "meant"),
        [
            ("tieredStoreFilepath", "tieredStoreFilePath"),
            ("tieredStoreGroupCommitTime", "tieredStoreGroupCommitTimeout"),
            ("TieredStorageLevel", "tieredStorageLevel"),
            ("objectStoreBuckets", "objectStoreBucket"),
        ],
    )
    def test_a_key_that_is_nearly_ours_is_an_error(
        self, tmp_path: Path, key: str, meant: str
    ) -> None:
        file = write(tmp_path, "broker.conf", f"{key}=1\n")
        with pytest.raises(InvalidConfigError, match=f"unknown key {key}: did you mean {meant}"):
            StoreConfig.from_broker_conf(file)

    @pytest.mark.parametrize(
        "key",
        [
            "brokerIP1",
            "storePathCommitLog",
            "mappedFileSizeCommitLog",
            "mappedFileSizeConsumeQueue",
            "maxHashSlotNum",
            "maxIndexNum",
            "fileReservedTime",
            "flushDiskType",
            "messageIndexSafe",
            "enableMessageIndex",
            "namesrvAddr",
            "storePathConsumeQueue",
            "storePathIndex",
            "brokerIdentity",
            "timerStorePath",
        ],
    )
    def test_rocketmqs_own_keys_are_never_taken_for_a_slip(self, tmp_path: Path, key: str) -> None:
        config = StoreConfig.from_broker_conf(write(tmp_path, "broker.conf", f"{key}=1\n"))
        assert config.ignored == {key: "1"}

    def test_a_java_class_that_has_no_counterpart_is_an_error(self, tmp_path: Path) -> None:
        name = "org.apache.rocketmq.tieredstore.provider.HdfsFileSegment"
        file = write(tmp_path, "broker.conf", f"tieredBackendServiceProvider={name}\n")
        with pytest.raises(InvalidConfigError, match="HdfsFileSegment"):
            StoreConfig.from_broker_conf(file)

    @pytest.mark.parametrize(
        ("text", "name", "value"),
        [
            (r"objectStoreEndpoint=http\://host\:9000", "endpoint", "http://host:9000"),
            (r"objectStoreBucket=a\u0042\=c\\", "bucket", "aB=c\\"),
            ("objectStoreBucket=a\\\\\nbrokerName=b", "bucket", "a\\"),
            ("objectStoreBucket=a\\\\\nbrokerName=b", "broker_name", "b"),
            ("objectStoreBucket a b ", "bucket", "a b"),
            ("objectStoreBucket:a\r\nbrokerName=b", "bucket", "a"),
            ("objectStoreBucket=a\robjectStoreBucket=b", "bucket", "b"),
            ("  objectStoreBucket = one,\\\n    two", "bucket", "one,two"),
            ("objectStoreBucket=a#b!c", "bucket", "a#b!c"),
            ("objectStoreBucket=", "bucket", ""),
            ("word without meaning\nobjectStoreBucket=a", "bucket", "a"),
        ],
    )
    def test_the_file_is_read_by_javas_rules(
        self, tmp_path: Path, text: str, name: str, value: str
    ) -> None:
        file = tmp_path / "broker.conf"
        file.write_bytes(text.encode("ascii"))
        assert getattr(StoreConfig.from_broker_conf(file), name) == value

    @pytest.mark.parametrize("name", ["società", "补充"])
    def test_a_name_ends_where_it_ends_for_java(self, tmp_path: Path, name: str) -> None:
        """Its last byte is a blank for Python, and none for Java."""
        file = tmp_path / "broker.conf"
        file.write_bytes(f"brokerName = {name} \t\nbrokerClusterName={name}".encode())
        config = StoreConfig.from_broker_conf(file)
        assert config.broker_name == config.cluster_name == name.encode().decode("latin-1")

    def test_other_encodings_in_comments_do_no_harm(self, tmp_path: Path) -> None:
        file = tmp_path / "broker.conf"
        file.write_bytes("# 名字\nbrokerName=b\n".encode("gbk"))
        assert StoreConfig.from_broker_conf(file).broker_name == "b"


class TestSecrets:
    SECRET = "AKIA-very-secret-0123456789"

    def test_no_repr_shows_one(self, tmp_path: Path) -> None:
        config = StoreConfig(access_key=self.SECRET, secret_key=self.SECRET)
        assert self.SECRET not in repr(config)
        assert self.SECRET not in str(config)
        text = f"objectStoreSecretKey={self.SECRET}\nsomeOtherSecretKey={self.SECRET}\n"
        read = StoreConfig.from_broker_conf(write(tmp_path, "broker.conf", text))
        assert read.secret_key == self.SECRET
        assert self.SECRET not in repr(read)

    def test_no_error_quotes_one(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidConfigError) as caught:
            StoreConfig.from_mapping({"secret_key": [self.SECRET]})
        assert self.SECRET not in str(caught.value)
        with pytest.raises(InvalidConfigError) as caught:
            StoreConfig(endpoint=f"https://user:{self.SECRET}@host")
        assert self.SECRET not in str(caught.value)

    def test_a_dump_of_the_fields_shows_none(self) -> None:
        config = StoreConfig(access_key=self.SECRET, secret_key=self.SECRET)
        assert self.SECRET not in repr(dataclasses.asdict(config))
        assert config.secret_key == self.SECRET


TEXTS = {
    "users": "root:x:0:0:root:/root:/bin/bash\ndaemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin\n",
    "prose": "# A page\n\nThe broker name = what you like; namesrvAddr is another matter.\n",
    "variables": "NAME=Debian\nVERSION_ID=12\n",
    "sections": "[global]\nname = x\n",
    "settings of ours": 'provider = "posix"\nbroker_name = "b"\n',
    "json": '{\n  "brokerName": "b"\n}\n',
    "nothing": "",
    "comments": "# brokerName=b\n\n",
    "no text": "\0\1\2\xff",
}


@pytest.mark.parametrize("kind", [StoreConfig, LocalConfig])
@pytest.mark.parametrize("name", TEXTS)
def test_a_text_that_is_no_broker_conf_is_refused(
    tmp_path: Path, name: str, kind: type[StoreConfig | LocalConfig]
) -> None:
    file = write(tmp_path, "some.conf", TEXTS[name])
    said = r"some\.conf: (is no broker\.conf: |unknown key \S+: did you mean brokerName\?)"
    with pytest.raises(InvalidConfigError, match=said) as refused:
        kind.from_file(file)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("kind", [StoreConfig, LocalConfig])
@pytest.mark.parametrize(
    "text",
    [
        "brokerIP1 10.0.0.1\nany thing\n",  # a line that follows Java's rules
        "namesrvAddr: 127.0.0.1:9876\n",
        "tieredStoreFilePath=/data\n",
        "mappedFileSizeCommitLog=1048576\n",
        "aKeyOfALaterVersion=7\nanotherOne = 8\n",
    ],
)
def test_a_broker_conf_of_any_version_is_taken(
    tmp_path: Path, text: str, kind: type[StoreConfig | LocalConfig]
) -> None:
    kind.from_file(write(tmp_path, "broker.conf", text))


@pytest.mark.parametrize(
    "text",
    [
        "storePathCommitLog={root}/other/commitlog",
        "storePathCommitLog={root}/store/commitlog,{root}/other",
        "enableDLegerCommitLog=TRUE",
        "storeType=defaultRocksDB",
    ],
)
def test_a_broker_conf_with_its_log_or_queues_elsewhere_opens_no_store(
    tmp_path: Path, text: str
) -> None:
    """That broker's tier can still be read."""
    text = f"storePathRootDir={tmp_path}/store\n{text.format(root=tmp_path)}\n"
    file = write(tmp_path, "broker.conf", text)
    with pytest.raises(InvalidConfigError, match=f"conf: {text.splitlines()[1].split('=')[0]}"):
        LocalConfig.from_broker_conf(file)
    assert StoreConfig.from_broker_conf(file).store_path == f"{tmp_path}/store"


def test_a_broker_conf_may_name_the_usual_place_of_the_log(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "store").mkdir()
    (tmp_path / "store/commitlog").symlink_to(tmp_path / "disk")
    for place in ("store/commitlog", "store/./commitlog/", "disk"):
        text = f"storePathRootDir={tmp_path}/store\nstorePathCommitLog={tmp_path}/{place}\n"
        LocalConfig.from_broker_conf(write(tmp_path, "broker.conf", text))


KEYS = [
    line
    for line in (Path(__file__).parent / "broker_conf_keys.txt").read_text().splitlines()
    if not line.startswith("#")
]
KINDS = pytest.mark.parametrize("kind", [StoreConfig, LocalConfig])
LONG = 60_000
SECONDS_MAX = 5.0  # it takes a tenth of this; quadratic code took up to 20


@KINDS
def test_no_setting_of_rocketmq_is_called_unknown(
    tmp_path: Path, kind: type[StoreConfig | LocalConfig]
) -> None:
    assert len(KEYS) == 522
    unknown = []
    for key in KEYS:
        file = tmp_path / "broker.conf"
        file.write_text(f"brokerName=b\n{key}=1\n")
        try:
            kind.from_file(file)
        except InvalidConfigError as error:  # some of our settings do not accept 1
            if "unknown" in str(error):
                unknown.append(key)
    assert unknown == []


TOML = {
    "a dotted name": "a" + ".a" * (LONG // 2) + "=1",
    "a dotted table": "[a" + ".a" * (LONG // 2) + "]",
    "a dotted name in a table": "x={" + "a." * (LONG // 2) + "a=1}",
    "quoted parts": '"a".' * (LONG // 4) + "a=1",
    "an open string of escapes": 'path="' + '"\\' * (LONG // 2),
    "quotes": '"' * LONG,
    "threefold quotes": "\"\"\"'''" * (LONG // 6),
    "tables": "".join(f"[t{number}]\n" for number in range(LONG // 6)),
    "brackets": "a=" + "[" * LONG,
}


@KINDS
@pytest.mark.parametrize("text", TOML.values(), ids=TOML)
def test_sixty_kilobytes_of_toml_are_refused_at_once(
    tmp_path: Path, kind: type[StoreConfig | LocalConfig], text: str
) -> None:
    file = tmp_path / "settings.toml"
    file.write_text(text)
    begun = time.process_time()
    with pytest.raises(InvalidConfigError):
        kind.from_file(file)
    assert time.process_time() - begun < SECONDS_MAX


def test_dots_in_a_value_or_a_comment_are_text(tmp_path: Path) -> None:
    dots = "a." * (LONG // 20)
    file = tmp_path / "settings.toml"
    for value in (f'"{dots}"', f"'{dots}'", f'"""\n{dots}"""', f"'''{dots}'''"):
        file.write_text(f"# {dots}\n[tieredstore] # {dots}\nprefix = {value}\n")
        assert StoreConfig.from_file(file).prefix.startswith("a.a.")


@KINDS
@pytest.mark.parametrize("text", ["a=b\\\n", "\\\n", "a ", "=", "\\u0041", "k\n", "#"])
def test_sixty_kilobytes_of_a_broker_conf_are_read_at_once(
    tmp_path: Path, kind: type[StoreConfig | LocalConfig], text: str
) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("brokerName=b\n" + text * (LONG // len(text)))
    begun = time.process_time()
    kind.from_file(file)
    assert time.process_time() - begun < SECONDS_MAX

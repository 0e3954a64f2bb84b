"""Where settings come from: mappings, TOML, environment, broker.conf; and secrets."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tieredstore.local.config import LocalConfig
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import InvalidConfigError
from tieredstore.model.values import StorageLevel

MIB = 1024 * 1024


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

    def test_a_missing_or_binary_or_huge_file_is_one_clear_error(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidConfigError, match="No such file"):
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
        }
        assert StoreConfig.from_env(environ).provider == "posix"
        assert LocalConfig.from_env(environ).sync_flush

    def test_an_unknown_variable_is_an_error_that_suggests_the_nearest(self) -> None:
        with pytest.raises(InvalidConfigError, match="did you mean TIEREDSTORE_PROVIDER"):
            StoreConfig.from_env({"TIEREDSTORE_PROVIDR": "posix"})

    @pytest.mark.parametrize("text", ["", "1e3", "0x10", "ten", "1.0"])
    def test_a_number_must_be_whole(self, text: str) -> None:
        with pytest.raises(InvalidConfigError, match="^reserve_hours: want a whole number"):
            StoreConfig.from_env({"TIEREDSTORE_RESERVE_HOURS": text})

    @pytest.mark.parametrize("text", ["", "1", "yes"])
    def test_a_switch_must_be_true_or_false(self, text: str) -> None:
        with pytest.raises(InvalidConfigError, match="^index_enabled: want true or false"):
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
        "brokerIP1 10.0.0.1\nany thing\n",  # Java's rules hold for the rest of a real one
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

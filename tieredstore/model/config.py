"""The settings of a tiered store: names, units, defaults and ranges."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Final, Self

from tieredstore.model.errors import InvalidConfigError
from tieredstore.model.settings import (
    Settings,
    computed,
    facts_of,
    has_password,
    setting,
    settings_of,
)
from tieredstore.model.topics import why_no_directory
from tieredstore.model.values import INT32_MAX, StorageLevel

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB
QUEUE_UNIT_BYTES: Final = 20
INITIAL_OFFSETS: Final = ("earliest", "recent")
CATALOGUES: Final = ("auto", "file", "published", "rebuild")


def _host_name() -> str:
    return socket.gethostname() or "DEFAULT_BROKER"


def default_store_path() -> str:
    return os.path.join(os.path.expanduser("~"), "store")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig(Settings):
    """Every setting of a store; checked when built, never changed afterwards.

    Defaults are RocketMQ 5.3.3's unless a field says otherwise. An unknown key is an error that
    names the nearest one. Secrets are in no repr, log or error.
    """

    # who
    broker_name: str = computed(
        _host_name, "First part of every queue's path; default: the host's name", "brokerName"
    )
    cluster_name: str = setting(
        "DefaultCluster", "Name of the cluster's directory", "brokerClusterName"
    )
    # where
    storage_level: StorageLevel = setting(
        StorageLevel.NOT_IN_DISK, "When the tier serves a read", "tieredStorageLevel"
    )
    store_path: str = computed(
        default_store_path,
        "Local directory: catalogue and unsealed index",
        "storePathRootDir",
        is_path=True,
    )
    provider: str = setting(
        "memory",
        "Backend that stores the bytes: a name or a dotted path",
        "tieredBackendServiceProvider",
    )
    path: str = setting(
        "", "Root directory of the posix provider", "tieredStoreFilePath", is_path=True
    )
    metadata: str = setting(
        "json",
        "Metadata store that keeps the catalogue: a name or a dotted path",
        "tieredMetadataServiceProvider",
    )
    metadata_path: str = setting(
        "",
        "File of the catalogue; empty: <store_path>/config/tieredStoreMetadata.json",
        is_path=True,
    )
    catalogue: str = setting(
        "auto",
        "What a reader starts from: the catalogue's 'file', the 'published' copy, or a 'rebuild' in"
        " memory; auto: the log of a bucket, else the file if it exists, else the published copy",
    )
    publish_interval_ms: int = setting(
        60_000,
        "Interval at which the catalogue is published in a tier's directory, or that of a bucket is"
        " copied to its file; 0: never",
    )
    plugins: tuple[str, ...] = setting(
        (), "Message stores that wrap the broker's own, outermost first", "messageStorePlugIn"
    )
    endpoint: str = setting("", "Address of the object store", "objectStoreEndpoint")
    bucket: str = setting("", "Bucket of the object store", "objectStoreBucket")
    access_key: str = setting(
        "", "Key id for the object store", "objectStoreAccessKey", secret=True
    )
    secret_key: str = setting(
        "", "Secret for the object store", "objectStoreSecretKey", secret=True
    )
    session_token: str = setting("", "Session token of short-lived keys", secret=True)
    region: str = setting("", "Region of the object store; empty: from the usual AWS chain")
    prefix: str = setting("", "Folder of the bucket that holds the tier")
    url: str = setting("", "Root of the fsspec provider, such as gs://bucket/tier")
    addressing: str = setting(
        "auto", "Bucket in the 'path' or in the host's name ('virtual'); auto: virtual with AWS"
    )
    storage_class: str = setting("", "Storage class of new objects; empty: the bucket's own")
    encryption: str = setting(
        "", "Server-side encryption: AES256 or aws:kms; empty: the store's default"
    )
    encryption_key: str = setting("", "Key id for aws:kms")
    conditional_put: bool = setting(
        True, "The object store honours conditional writes; without them only one writer is safe"
    )
    etag_quoting: bool = setting(True, "Ignored: no request compares an ETag")
    checksum: str = setting(
        "", "Checksum for the store to verify: crc32, crc32c, sha256 or crc64nvme"
    )
    object_client: str = setting(
        "auto", "S3 client: s3fs or obstore; auto: obstore if it is installed"
    )
    connect_timeout_ms: int = setting(5_000, "Timeout of a connection attempt", minimum=1)
    request_timeout_ms: int = setting(
        60_000, "Longest time without a byte from the object store during a request", minimum=1
    )
    connections_max: int = setting(
        64, "Connections per process to the object store", minimum=1, maximum=10_000
    )
    request_prices: tuple[str, ...] = setting(
        (), "Dollars for 1 000 requests, such as put=0.005, if you do not pay S3's list prices"
    )
    certify: str = setting(
        "require",
        "Certify an object store before the first write. One that fails is refused; 'warn': it is"
        " used anyway; 'off': no store is tested",
    )
    claim_epoch: bool = setting(
        True,
        "A writer fences every other writer of the tier before it reads. Jobs of many processes set"
        " False: they share the current epoch, and no broker may run meanwhile",
    )
    # segments
    commit_log_segment_bytes: int = setting(
        GIB, "Largest size of a commit log segment", "tieredStoreCommitLogMaxSize", minimum=1
    )
    consume_queue_segment_bytes: int = setting(
        100 * MIB,
        "Largest size of a consume queue segment",
        "tieredStoreConsumeQueueMaxSize",
        minimum=QUEUE_UNIT_BYTES,
    )
    commit_log_rolling_hours: int = setting(
        24,
        "Age at which a commit log segment is closed and the next begins",
        "commitLogRollingInterval",
        minimum=1,
    )
    commit_log_rolling_min_bytes: int = setting(
        16 * MIB, "Smaller segments are not closed by age", "commitLogRollingMinimumSize"
    )
    # key index
    index_enabled: bool = setting(True, "Build the key index", "messageIndexEnable")
    index_slot_count: int = setting(
        5_000_000,
        "Hash slots per index file; never change it on an existing store",
        "tieredStoreIndexFileMaxHashSlotNum",
        minimum=1,
        maximum=INT32_MAX // 8,
    )
    index_item_count: int = setting(
        20_000_000,
        "Items per index file, plus one; never change it on an existing store",
        "tieredStoreIndexFileMaxIndexNum",
        minimum=2,
        maximum=INT32_MAX // 32,
    )
    index_rolling_hours: int = setting(
        24, "Age at which an index file that is not full is uploaded", minimum=1
    )
    index_footer_cache_bytes: int = setting(
        GIB, "Size of the local copies of footers of uploaded index files", minimum=0
    )
    # retention
    expiry_enabled: bool = setting(True, "Delete expired segments", "tieredStoreDeleteFileEnable")
    reserve_hours: int = setting(
        72, "Retention of topics without a retention of their own", "tieredStoreFileReservedTime"
    )
    expiry_interval_ms: int = setting(
        3_600_000, "Interval of expiry runs", "tieredStoreDeleteFileInterval", minimum=1
    )
    # consumer offsets and topics
    tables_enabled: bool = setting(
        True, "Keep consumer offsets and topics, on disk and in the tier, for a broker that asks"
    )
    tables_interval_ms: int = setting(
        5_000,
        "Interval at which changed tables are written to disk",
        "flushConsumerOffsetInterval",
        minimum=1,
    )
    tables_copy_interval_ms: int = setting(
        30_000, "Interval at which changed rows are copied to the tier", minimum=1
    )
    # dispatch
    initial_offset: str = setting(
        "earliest",
        "Where the upload of a queue begins: 'earliest': at its oldest message; 'recent': two"
        " minutes ago, as in RocketMQ",
    )
    dispatch_interval_ms: int = setting(
        20_000, "Interval at which all queues are checked", minimum=1
    )
    group_commit_enabled: bool = setting(
        True, "Hold messages back until a batch is due", "tieredStoreGroupCommit"
    )
    group_commit_timeout_ms: int = setting(
        30_000, "Age of the oldest message that makes a batch due", "tieredStoreGroupCommitTimeout"
    )
    group_commit_count: int = setting(
        4_096, "Number of messages that makes a batch due", "tieredStoreGroupCommitCount", minimum=1
    )
    group_commit_bytes: int = setting(
        4 * MIB, "Number of bytes that makes a batch due", "tieredStoreGroupCommitSize", minimum=1
    )
    buffered_count_max: int = setting(
        10_000,
        "Ignored: dispatch_buffer_bytes bounds the waiting messages of all queues",
        "tieredStoreMaxGroupCommitCount",
        minimum=1,
    )
    pending_count_max: int = setting(
        10_000,
        "A quarter of it bounds the uploads in flight",
        "tieredStoreMaxPendingLimit",
        minimum=4,
    )
    dispatch_buffer_bytes: int = setting(
        256 * MIB, "Most bytes that wait for upload, over all queues", minimum=1
    )
    # reads
    read_ahead_enabled: bool = setting(True, "Read ahead and cache", "readAheadCacheEnable")
    read_ahead_count: int = setting(
        4_096, "Messages per read-ahead", "readAheadMessageCountThreshold", minimum=1
    )
    read_ahead_bytes: int = setting(
        16 * MIB, "Bytes per read of the commit log", "readAheadMessageSizeThreshold", minimum=1
    )
    read_ahead_ms: int = setting(
        15_000, "How long the cache keeps data that is not read", "readAheadCacheExpireDuration"
    )
    read_cache_bytes: int = setting(
        256 * MIB, "Size of the read cache; in RocketMQ it is a share of the heap"
    )
    record_get_message_result: bool = setting(
        False, "Log the outcome of every read", "recordGetMessageResult"
    )
    crc_check_enabled: bool | None = setting(
        None,
        "Check body checksums: true: on every read; false: on none; unset: on reads of many"
        " messages (`messages`, `runs`, jobs, Spark). RocketMQ ignores it",
        "tieredStoreCrcCheckEnable",
    )
    TABLE: ClassVar = "tieredstore"
    ENV_PREFIX: ClassVar = "TIEREDSTORE_"

    def __post_init__(self) -> None:
        self._check()
        if "@" in self.endpoint:
            raise InvalidConfigError("endpoint: holds credentials; give them apart")
        if has_password(self.url):
            raise InvalidConfigError("url: holds credentials; give them to fsspec, in its settings")
        # A cluster's directory has eight digits and an underscore before the name.
        for name, before in (("broker_name", ""), ("cluster_name", "00000000_")):
            value = getattr(self, name)
            reason = why_no_directory(value) or why_no_directory(before + value)
            if reason is not None:
                raise InvalidConfigError(f"{name}: {reason}")
        if self.initial_offset not in INITIAL_OFFSETS:
            raise InvalidConfigError(
                f"initial_offset: {self.initial_offset!r} is none of {', '.join(INITIAL_OFFSETS)}"
            )
        if self.catalogue not in CATALOGUES:
            raise InvalidConfigError(
                f"catalogue: {self.catalogue!r} is none of {', '.join(CATALOGUES)}"
            )
        index_bytes = 28 + 8 * self.index_slot_count + 32 * self.index_item_count
        if index_bytes > INT32_MAX:
            raise InvalidConfigError(
                f"index_item_count: an index file of {index_bytes} bytes is more than {INT32_MAX}"
            )

    def with_full_paths(self) -> Self:
        """The same settings with absolute paths, for workers with another current folder."""
        given = {name: getattr(self, name) for name in ("path", "store_path", "metadata_path")}
        full = {name: os.path.abspath(path) for name, path in given.items() if path}
        return replace(self, **full) if any(given[name] != full[name] for name in full) else self

    def with_secrets(self, environ: Mapping[str, str]) -> Self:
        """Take the object store's keys from variables if there are none, so that a file need hold
        no secret. Other variables are ignored, as the caller may name two tiers."""
        if self.access_key or self.secret_key:
            return self
        secret = [name for name, spec in settings_of(self).items() if facts_of(spec).secret]
        names = [f"{self.ENV_PREFIX}{name.upper()}" for name in secret]
        return self.with_env({name: environ[name] for name in names if name in environ})

    @property
    def checks_pages(self) -> bool:
        """Whether the bodies of single messages and of a consumer's pages are checked."""
        return self.crc_check_enabled is True

    @property
    def checks_bulk_reads(self) -> bool:
        """Whether bodies are checked when many messages are read as columns, which costs little."""
        return self.crc_check_enabled is not False

    @property
    def catalogue_path(self) -> str:
        """The path of the catalogue's file."""
        return self.metadata_path or os.path.join(
            self.store_path, "config", "tieredStoreMetadata.json"
        )

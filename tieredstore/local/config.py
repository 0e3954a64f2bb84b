"""The settings of a local store with RocketMQ's defaults, and the levels of delayed messages."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

from tieredstore.codec.queue_unit import UNIT_BYTES
from tieredstore.codec.record import DELAY_LEVEL, TAGS, tags_code
from tieredstore.model.config import GIB, KIB, MIB, default_store_path
from tieredstore.model.errors import InvalidConfigError
from tieredstore.model.settings import Settings, computed, setting
from tieredstore.model.topics import SCHEDULE_TOPIC
from tieredstore.model.values import INT32_MAX

DELAY_MS_MAX: Final = 100 * 365 * 86_400_000  # a delivery time must fit into 8 bytes
_UNITS_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DIGITS_MAX: Final = 18


class DelayLevels:
    """The delays of a setting like `1s 5s 10s`. Level 1 is the first; a level beyond the last
    counts as the last."""

    def __init__(self, text: str) -> None:
        self._delays_ms: list[int] = []
        for word in text.split():
            number, unit = word[:-1], word[-1:]
            if unit not in _UNITS_MS or not (number.isascii() and number.isdigit()):
                raise InvalidConfigError(f"message_delay_levels: {word!r} is no delay such as 10s")
            if len(number) > _DIGITS_MAX or int(number) * _UNITS_MS[unit] > DELAY_MS_MAX:
                raise InvalidConfigError(
                    f"message_delay_levels: {word!r:.40} is more than a hundred years"
                )
            self._delays_ms.append(int(number) * _UNITS_MS[unit])

    @property
    def count(self) -> int:
        """How many there are. Without levels RocketMQ uses one of 1000 ms."""
        return max(1, len(self._delays_ms))

    def delay_ms(self, topic: str, properties: Mapping[str, str]) -> int | None:
        """How long this message waits; None if it does not. Raises ValueError if its level is not a
        number.

        Only messages of the schedule topic wait.
        """
        text = properties.get(DELAY_LEVEL) if topic == SCHEDULE_TOPIC else None
        if not text:
            return None
        digits = text[1:] if text[0] in "+-" else text
        if not (digits.isascii() and digits.isdigit()):
            raise ValueError(f"property DELAY: {text!r:.40} is no number")
        level = min(int(text), self.count)
        if level <= 0:
            return None
        return self._delays_ms[level - 1] if self._delays_ms else 1_000

    def tags_code(self, topic: str, properties: Mapping[str, str], store_timestamp: int) -> int:
        """The tags code that a consume queue stores for a message in the log."""
        try:
            delay = self.delay_ms(topic, properties)
        except ValueError:  # another program wrote it: a log is never refused for that
            delay = None
        return tags_code(properties.get(TAGS)) if delay is None else store_timestamp + delay


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalConfig(Settings):
    """Every setting of a local store. The four sizes shape the files and never change."""

    TABLE: ClassVar = "local"
    ENV_PREFIX: ClassVar = "TIEREDSTORE_LOCAL_"

    store_path: str = computed(
        default_store_path, "Directory of the store", "storePathRootDir", is_path=True
    )
    # the sizes that no file carries
    commit_log_file_bytes: int = setting(
        GIB, "Size of a commit log file", "mappedFileSizeCommitLog", minimum=256, maximum=INT32_MAX
    )
    queue_file_bytes: int = setting(
        6_000_000,
        "Size of a consume queue file; rounded up to whole units of 20 bytes",
        "mappedFileSizeConsumeQueue",
        minimum=UNIT_BYTES,
        maximum=INT32_MAX - UNIT_BYTES,
    )
    index_slot_count: int = setting(
        5_000_000, "Hash slots per index file", "maxHashSlotNum", minimum=1, maximum=500_000_000
    )
    index_item_count: int = setting(
        20_000_000,
        "Items per index file, plus one",
        "maxIndexNum",
        minimum=2,
        maximum=100_000_000,
    )
    # messages
    message_bytes_max: int = setting(
        4 * MIB, "Largest body of a message", "maxMessageSize", minimum=1, maximum=GIB
    )
    property_crc_enabled: bool = setting(
        False, "Append a checksum of the whole record as a property", "enabledAppendPropCRC"
    )
    # durability
    flush_disk_type: str = setting(
        "ASYNC_FLUSH", "SYNC_FLUSH: a put returns once its message is on disk", "flushDiskType"
    )
    flush_interval_ms: int = setting(
        500, "Interval of commit log syncs", "flushIntervalCommitLog", minimum=1
    )
    queue_flush_interval_ms: int = setting(
        1_000, "Interval of queue and index syncs", "flushIntervalConsumeQueue", minimum=1
    )
    sync_flush_timeout_ms: int = setting(
        5_000, "How long a put waits for the disk", "syncFlushTimeout", minimum=1
    )
    # index
    index_enabled: bool = setting(True, "Keep the key index", "messageIndexEnable")
    query_count_max: int = setting(
        64, "Most messages that a query by key returns", "maxMsgsNumBatch", minimum=1
    )
    # reads
    memory_bytes_max: int = setting(
        256 * KIB, "Most bytes per read from memory", "maxTransferBytesOnMessageInMemory", minimum=1
    )
    memory_count_max: int = setting(
        32, "Most messages per read from memory", "maxTransferCountOnMessageInMemory", minimum=1
    )
    # dispatch
    dispatch_count_max: int = setting(256, "Messages per dispatch batch", minimum=1)
    dispatch_interval_ms: int = setting(
        2, "Delay before a message is dispatched; 0: before its put returns", minimum=0
    )
    dispatch_behind_max: int = setting(
        100_000,
        "Puts are refused while dispatch fails and this many messages wait for it",
        minimum=1,
    )
    # retention
    reserve_hours: int = setting(72, "How long files are kept", "fileReservedTime")
    expiry_interval_ms: int = setting(
        10_000, "Interval of checks for expired files", "cleanResourceInterval", minimum=1
    )
    delete_count_max: int = setting(
        10, "Most commit log files deleted per check", "deleteFileBatchMax", minimum=1
    )
    disk_full_percent: int = setting(
        90,
        "Disk usage above which puts are refused, unless delete_before_offload",
        minimum=1,
        maximum=100,
    )
    disk_clean_percent: int = setting(
        75,
        "Disk usage above which files are deleted early",
        "diskMaxUsedSpaceRatio",
        minimum=1,
        maximum=100,
    )
    delete_before_offload: bool = setting(
        False,
        "On a full disk, keep accepting puts and delete files even if the tier still needs them",
    )
    message_delay_levels: str = setting(
        "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h",
        "Delays of the delay levels",
        "messageDelayLevel",
    )

    def __post_init__(self) -> None:
        self._check()
        if not self.store_path:  # such as that of an unset variable in a script
            raise InvalidConfigError("store_path: it is empty")
        if self.flush_disk_type not in ("ASYNC_FLUSH", "SYNC_FLUSH"):
            raise InvalidConfigError("flush_disk_type: want ASYNC_FLUSH or SYNC_FLUSH")
        DelayLevels(self.message_delay_levels)  # raises an error that says what is wrong
        units = -(-self.queue_file_bytes // UNIT_BYTES)
        object.__setattr__(self, "queue_file_bytes", units * UNIT_BYTES)

    def _refuse_ignored(self) -> None:
        """Refuse a log elsewhere: the log here would be empty, and all queues be cut to it. And
        queues in RocksDB: here there would be none."""
        log, place = str(self.root / "commitlog"), self.ignored.get("storePathCommitLog")
        if place and os.path.realpath(place) != os.path.realpath(log):
            raise InvalidConfigError(f"storePathCommitLog: {place}: a store has its log in {log}")
        if self.ignored.get("enableDLegerCommitLog", "").lower() == "true":
            raise InvalidConfigError("enableDLegerCommitLog: a log of DLedger's is not read here")
        if self.ignored.get("storeType", "").lower() == "defaultrocksdb":
            raise InvalidConfigError("storeType: queues in RocksDB are not read here")

    @property
    def sync_flush(self) -> bool:
        return self.flush_disk_type == "SYNC_FLUSH"

    @property
    def root(self) -> Path:
        return Path(self.store_path)

"""The options of a tier and of a read, as Spark passes them: texts by name.

| option                   | what                                                             |
| ------------------------ | ---------------------------------------------------------------- |
| config                   | file with the settings: a .toml or a broker.conf                 |
| tier                     | the tier [tier.NAME] of that file                                |
| provider, path, metadata | without config: where the tier and its catalogue file are        |
| bucket, prefix, endpoint | likewise, in an object store                                     |
| cluster, broker          | whose tier it is                                                 |
| any other setting        | by its name in `StoreConfig`; it overrides the file              |
| topics, topic_pattern    | a,b; or a regular expression for the whole name                  |
| queues                   | queue ids: 0,2,5-7                                               |
| start_offset, end_offset | queue offsets; the first is included, the second is not          |
| start_time, end_time     | store times likewise: milliseconds, or 2026-01-31T12:00:00+00:00 |
| key, keys                | messages with this key; with one of these, separated by blanks   |
| columns                  | a,b: these and no others, in this order                          |
| limit                    | at most so many messages, whichever one task reads first         |
| split_bytes              | log bytes of one partition: 128m                                 |
| pushdown                 | true: Spark's filters narrow what is read; see docs/spark.md     |
| on_corrupt               | fail, skip or report                                             |
| fail_on_data_loss        | false: skip what expired or was deleted meanwhile                |
| starting, ending         | earliest, latest, a time, or offsets as Kafka's source has them: |
|                          | {"topic": {"0": 23, "1": -1}}; -2 is the oldest, -1 the newest   |
| max_messages_per_trigger | of a stream                                                      |
| max_bytes_per_trigger    | of a stream, in log bytes, which are estimated                   |
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Final, TypeVar

from tieredstore.jobs.arrow import MESSAGE_COLUMNS
from tieredstore.jobs.scan import DAMAGE, OnCorrupt, Scan
from tieredstore.jobs.slices import EVER, Selection
from tieredstore.model.config import StoreConfig
from tieredstore.model.errors import InvalidConfigError
from tieredstore.model.settings import settings_of
from tieredstore.model.values import INT64_MAX, QueueKey

EnumT = TypeVar("EnumT", bound=Enum)

PARTITION_BYTES: Final = 128 * 1024 * 1024
"""As Spark cuts files: each task costs tens of milliseconds."""
_SHORT_NAMES: Final = {
    "metadata": "metadata_path",
    "cluster": "cluster_name",
    "broker": "broker_name",
}
_READ_NAMES: Final = (
    *("topics", "topic_pattern", "queues", "start_offset", "end_offset", "start_time"),
    *("end_time", "key", "keys", "columns", "limit", "split_bytes", "pushdown", "on_corrupt"),
    *(
        "fail_on_data_loss",
        "starting",
        "ending",
        "max_messages_per_trigger",
        "max_bytes_per_trigger",
    ),
)
_NAMES_A_TIER: Final = frozenset({"config", "provider", "path", "bucket", "url"})
_KAFKAS_NAMES: Final = {
    "startingoffsets": "starting",
    "endingoffsets": "ending",
    "subscribe": "topics",
    "subscribepattern": "topic_pattern",
    "maxoffsetspertrigger": "max_messages_per_trigger",
}
_OTHER_NAMES: Final = _SHORT_NAMES | _KAFKAS_NAMES
CHOOSE_TOPICS: Final = frozenset({"topics", "topicpattern"})
"""The plain names of the options that say which topics are read."""
OLDEST: Final = -2
NEWEST: Final = -1
_SIZES: Final = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Starting(Enum):
    EARLIEST = "earliest"
    LATEST = "latest"


def plain_name(name: str) -> str:
    """The one name of an option, however it is written, without case and underscores."""
    plain = name.replace("_", "").lower()
    return _OTHER_NAMES.get(plain, plain).replace("_", "")


def names_a_tier(options: Mapping[str, str]) -> bool:
    """Whether these options say which tier is meant."""
    return not _NAMES_A_TIER.isdisjoint(map(plain_name, options))


def split_options(
    options: Mapping[str, str], *, known: tuple[str, ...]
) -> tuple[dict[str, str], dict[str, str]]:
    """Split into settings of the store and `known` options. InvalidConfigError for any other."""
    settings = {plain_name(name): name for name in settings_of(StoreConfig) if name != "metadata"}
    others = {plain_name(name): name for name in known}
    store: dict[str, str] = {}
    rest: dict[str, str] = {}
    for given, text in options.items():
        plain = plain_name(given)
        if plain in ("config", "tier"):
            store[plain] = text
        elif plain in others:
            if others[plain] in rest:
                raise InvalidConfigError(f"option {given}: {others[plain]} is given twice")
            rest[others[plain]] = text
        elif plain in settings:
            if settings[plain] in store:
                raise InvalidConfigError(f"option {given}: {settings[plain]} is given twice")
            store[settings[plain]] = text
        else:
            everything = {"config": "config", "tier": "tier", **settings, **others}
            names = [*everything, *_OTHER_NAMES]
            near = difflib.get_close_matches(plain, names, n=1)
            meant = everything.get(plain_name(near[0])) if near else None
            hint = f": did you mean {meant}?" if meant else ""
            raise InvalidConfigError(f"option {given}: there is no such option{hint}")
    return store, rest


def store_config(settings: Mapping[str, str]) -> StoreConfig:
    """The tier that the options name, from the first result of `split_options`.

    Credentials of an object store that the options leave out come from the caller's environment.
    """
    texts = dict(settings)
    file, tier = texts.pop("config", None), texts.pop("tier", None)
    if file is not None:
        if not os.path.exists(file):
            raise InvalidConfigError(f"no such file: {file}")
        config = StoreConfig.from_file(file, tier=tier)
    elif tier is not None:
        raise InvalidConfigError(f"tier {tier}: name the file that has it with the option config")
    else:
        config = StoreConfig()
        if "provider" not in texts:
            texts |= _likely_provider(texts)
    prefix = StoreConfig.ENV_PREFIX
    config = config.with_env({prefix + name.upper(): text for name, text in texts.items()})
    where = f"{file}: " if file else ""
    if config.provider == "memory":
        raise InvalidConfigError(
            f"{where}a tier in memory is gone with its process; name another with the option"
            " config, or with path and metadata, or with bucket"
        )
    if config.provider == "posix" and not config.path:
        raise InvalidConfigError(f"{where}name the root of the tier with the option path")
    if config.provider == "s3" and not config.bucket:
        raise InvalidConfigError(f"{where}name the bucket of the tier with the option bucket")
    return config.with_full_paths().with_secrets(os.environ)


def _likely_provider(texts: Mapping[str, str]) -> dict[str, str]:
    for name, provider in (("bucket", "s3"), ("url", "fsspec"), ("path", "posix")):
        if texts.get(name):
            return {"provider": provider}
    raise InvalidConfigError(
        "which tier? Name it with the option config, or with path and metadata, or with bucket"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """All options of a read, checked. Nothing has been opened yet."""

    config: StoreConfig
    scan: Scan
    limit: int | None = None
    split_bytes: int = PARTITION_BYTES
    takes_filters: bool = False
    starting: Starting | int | Mapping[QueueKey, int] = Starting.EARLIEST
    ending: Mapping[QueueKey, int] = field(default_factory=dict)
    max_messages: int | None = None
    max_bytes: int | None = None

    @property
    def selection(self) -> Selection:
        return self.scan.selection

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> ReadOptions:
        store, texts = split_options(options, known=_READ_NAMES)
        on_corrupt = _choice(OnCorrupt, "on_corrupt", texts.get("on_corrupt", "fail"))
        default = (*MESSAGE_COLUMNS, DAMAGE) if on_corrupt is OnCorrupt.REPORT else MESSAGE_COLUMNS
        starting = _starting(texts.get("starting", "earliest"))
        ending = _ending(texts.get("ending", "latest"))
        for key, begin in starting.items() if isinstance(starting, Mapping) else ():
            end = ending.get(key, NEWEST)
            if end != NEWEST and begin > end:
                raise InvalidConfigError(
                    f"starting: {key.topic}, queue {key.queue_id}: {begin} is behind ending {end}"
                )
        return cls(
            config=store_config(store),
            scan=Scan(
                columns=_names("columns", texts["columns"])
                if "columns" in texts
                else tuple(default),
                selection=_selection(texts),
                on_corrupt=on_corrupt,
                fails_on_loss=parse_truth(
                    "fail_on_data_loss", texts.get("fail_on_data_loss", "true")
                ),
            ),
            limit=_rows(texts["limit"]) if "limit" in texts else None,
            split_bytes=parse_size("split_bytes", texts.get("split_bytes", str(PARTITION_BYTES))),
            takes_filters=parse_truth("pushdown", texts.get("pushdown", "false")),
            starting=starting,
            ending=ending,
            max_messages=_limit(texts, "max_messages_per_trigger"),
            max_bytes=_limit(texts, "max_bytes_per_trigger"),
        )


def _selection(texts: Mapping[str, str]) -> Selection:
    topics = _names("topics", texts["topics"]) if "topics" in texts else None
    pattern = texts.get("topic_pattern")
    if pattern is not None:
        _not_empty("topic_pattern", pattern)
        try:
            re.compile(pattern)
        except re.error as error:
            raise InvalidConfigError(f"topic_pattern: {pattern!r}: {error}") from None
    keys = [_not_empty("key", texts["key"])] if "key" in texts else []
    if "keys" in texts:
        keys += _not_empty("keys", texts["keys"]).split()
    chosen = Selection(
        topics=None if topics is None else frozenset(topics),
        topic_pattern=pattern,
        queue_ids=_queue_ids(texts["queues"]) if "queues" in texts else None,
        offsets=(
            parse_number("start_offset", texts.get("start_offset", "0")),
            parse_number("end_offset", texts.get("end_offset", str(INT64_MAX))),
        ),
        times=(
            _time("start_time", texts["start_time"]) if "start_time" in texts else EVER[0],
            _time("end_time", texts["end_time"]) if "end_time" in texts else EVER[1],
        ),
        keys=frozenset(keys) if keys else None,
    )
    for what, (first, end) in (("offset", chosen.offsets), ("time", chosen.times)):
        if first >= end:
            raise InvalidConfigError(f"start_{what}: {first} is not before end_{what} {end}")
    return chosen


def _not_empty(name: str, text: str) -> str:
    """Refuse an option that names nothing: it would select nothing or, by mistake, everything."""
    if not text.strip():
        raise InvalidConfigError(f"{name}: name at least one")
    return text


def _names(name: str, text: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in text.split(",") if part.strip())
    if not names:
        raise InvalidConfigError(f"{name}: name at least one")
    if len(set(names)) < len(names):
        raise InvalidConfigError(f"{name}: one is named twice")
    return names


def parse_number(name: str, text: str) -> int:
    digits = text.strip()
    if not (digits.isascii() and digits.isdigit()):
        raise InvalidConfigError(f"{name}: want a whole number, not {text!r:.60}")
    return min(int(digits.lstrip("0")[:20] or "0"), INT64_MAX)  # Python converts no endless ones


def _limit(texts: Mapping[str, str], name: str) -> int | None:
    return parse_size(name, texts[name]) if name in texts else None


def _rows(text: str) -> int:
    count = parse_number("limit", text)
    if count < 1:
        raise InvalidConfigError("limit: 0 messages are none; want at least 1")
    return count


def parse_size(name: str, text: str) -> int:
    found = re.fullmatch(r"([0-9]{1,18})([kmg]?)b?", text.strip().lower())
    size = int(found[1]) * _SIZES[found[2]] if found else 0
    if size < 1:
        raise InvalidConfigError(
            f"{name}: want a number of at least 1 such as 64m, not {text!r:.60}"
        )
    return size


def _queue_ids(text: str) -> frozenset[int]:
    found: set[int] = set()
    for part in _names("queues", text):
        first, dash, last = part.partition("-")
        low = parse_number("queues", first)
        high = parse_number("queues", last) if dash else low
        if high < low:
            raise InvalidConfigError(f"queues: {part!r:.60} ends before it begins")
        if high - low > 65_536:
            raise InvalidConfigError(f"queues: {part!r:.60} is too long a range")
        found.update(range(low, high + 1))
    return frozenset(found)


def _time(name: str, text: str) -> int:
    """Milliseconds; a time without a zone is UTC."""
    plain = text.strip()
    if re.fullmatch(r"-?[0-9]{1,18}", plain):
        return int(plain)
    try:
        moment = datetime.fromisoformat(plain)
    except ValueError:
        raise InvalidConfigError(
            f"{name}: want milliseconds or a time such as 2026-01-31T12:00:00, not {text!r:.60}"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return -((_EPOCH - moment) // timedelta(milliseconds=1))  # rounded up


def _starting(text: str) -> Starting | int | Mapping[QueueKey, int]:
    plain = text.strip().lower()
    known = {choice.value: choice for choice in Starting}
    if plain in known:
        return known[plain]
    return parse_offsets("starting", text) if plain[:1] == "{" else _time("starting", text)


def _ending(text: str) -> Mapping[QueueKey, int]:
    if text.strip().lower() == Starting.LATEST.value:
        return {}
    ends = parse_offsets("ending", text)
    for key, offset in ends.items():
        if offset == OLDEST:
            raise InvalidConfigError(
                f"ending: {key.topic}, queue {key.queue_id}: nothing ends at the oldest message"
            )
    return ends


def parse_offsets(name: str, text: str) -> dict[QueueKey, int]:
    """Offsets by queue from `{"topic": {"0": 23, "1": -1}}`; OLDEST and NEWEST are among them."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        document = None
    found: dict[QueueKey, int] = {}
    topics = document if isinstance(document, dict) else {"": None}
    for topic, queues in topics.items():
        for queue_id, offset in (queues if isinstance(queues, dict) else {"": None}).items():
            is_queue = queue_id.isascii() and queue_id.isdigit() and len(queue_id) < 11
            if not is_queue or type(offset) is not int or not OLDEST <= offset <= INT64_MAX:
                raise InvalidConfigError(
                    f'{name}: want latest, or offsets such as {{"topic": {{"0": 23, "1": -1}}}},'
                    f" not {text!r:.60}"
                )
            found[QueueKey(topic, int(queue_id))] = offset
    return found


def parse_truth(name: str, text: str) -> bool:
    plain = text.strip().lower()
    if plain not in ("true", "false"):
        raise InvalidConfigError(f"{name}: want true or false, not {text!r:.60}")
    return plain == "true"


def _choice(kind: type[EnumT], name: str, text: str) -> EnumT:
    try:
        return kind(text.strip().lower())
    except ValueError:
        known = ", ".join(str(choice.value) for choice in kind)
        raise InvalidConfigError(f"{name}: {text!r:.60} is none of {known}") from None

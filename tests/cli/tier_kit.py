"""The options that name golden tiers and copies, and what Java said of their messages."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.cli.cli_kit import Command, Ran, Row
from tests.codec.golden_files import BROKER, CLUSTER, GOLDEN, expected
from tieredstore.codec.names import segment_name

TIER = GOLDEN / "tier-posix"
LEGACY = GOLDEN / "legacy"
CATALOGUE = "store/config/tieredStoreMetadata.json"
VERBS: list[list[object]] = [
    ["topics"],
    ["queues"],
    ["segments"],
    ["ls"],
    ["cat", "GoldAa"],
    ["offset", "GoldAa", 0, 1795171540000],
]


def verb_of(words: list[object]) -> str:
    return str(words[0])


def named(root: Path, **others: object) -> list[str]:
    """The options that name a golden tier; `others` replace some, and None leaves one out."""
    options: dict[str, object] = {
        "provider": "posix",
        "path": root / "tiered",
        "catalogue-file": root / CATALOGUE,
        "cluster": "GoldenCluster",
        "broker": BROKER,
        "index-slots": 64,
        "index-items": 300,
        **{name.replace("_", "-"): value for name, value in others.items()},
    }
    return [
        word
        for name, value in options.items()
        if value is not None
        for word in (f"--{name}", str(value))
    ]


def asked(command: Command, root: Path, *words: object) -> Ran:
    """Run a verb with its words on the golden tier at this root."""
    return command.run(*words, *named(root))


def copied(target: Path, root: Path = TIER) -> Path:
    shutil.copytree(root, target)
    return target


def segment_file(root: Path, queue: str, kind: str, base: int) -> Path:
    return root / "tiered" / CLUSTER / BROKER / queue / kind / segment_name(base)


def java_messages(topic: str | None = None, queue_id: int | None = None) -> list[Row]:
    """Java's messages by queue and offset, under the command line's field names."""
    names = {
        "topic": "topic",
        "queue_id": "queueId",
        "queue_offset": "queueOffset",
        "log_offset": "tieredCommitLogOffset",
        "size": "size",
        "tags_code": "tagsCode",
        "store_timestamp": "storeTimestamp",
        "sha256": "sha256",
    }
    return [
        {ours: row[java] for ours, java in names.items()}
        for row in expected("tier-posix.expect-messages.json")
        if topic in (None, row["topic"]) and queue_id in (None, row["queueId"])
    ]


def in_store_order(rows: list[Row]) -> list[Row]:
    return sorted(
        rows, key=lambda row: (row["store_timestamp"], row["queue_id"], row["queue_offset"])
    )


def as_java_told(rows: list[Row]) -> list[Row]:
    """Rows that the command line printed, with only the fields that Java described."""
    names = list(java_messages()[0])
    return [{name: row[name] for name in names} for row in rows]


def tier_beside(store: Path) -> tuple[object, ...]:
    """The options for the tier that `offload` makes in a local store's folder."""
    where = ("--provider", "posix", "--path", store / "tier", "--store-path", store)
    return (*where, "--broker", "b")

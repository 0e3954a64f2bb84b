"""How fast a key index accepts runs of messages, and how long it takes to make them durable."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench._messages import run_of
from tieredstore.codec.key_hashes import key_hashes
from tieredstore.codec.message import decode_message
from tieredstore.driver.runtime import Runtime
from tieredstore.index.contract import CommittedRun
from tieredstore.index.store import IndexStore
from tieredstore.metadata.json_store import JsonMetadataStore
from tieredstore.model.config import StoreConfig
from tieredstore.providers.memory import MemoryProvider
from tieredstore.testing.samples import STORE_TIMESTAMP, TOPIC, a_record

RUN_MESSAGES = 4_096
KEYS_A_MESSAGE = 2
RUNS_A_TURN = 2  # this many wait in memory before they are written
TURNS, FIRST_TURNS = 20, 3  # the first ones make the file and touch its slots


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreFigures:
    keys_a_second: Sequence[float]
    plain_keys_a_second: Sequence[float]
    put_seconds: float
    sync_seconds: float


def committed_run(first: int) -> CommittedRun:
    """Messages of one queue: a UNIQ_KEY, one key and three other properties each."""
    records = [
        a_record(
            number,
            properties={
                "KEYS": f"order-{number:012d}",
                "UNIQ_KEY": f"7F0000010A2F18B4AAC2{number:012X}",
                "CLUSTER": "DefaultCluster",
                "TAGS": "TagA",
                "WAIT": "true",
            },
        )
        for number in range(first, first + RUN_MESSAGES)
    ]
    run = run_of(first, records)
    return CommittedRun(run=run, log_offsets=run.starts + 400 * first)


def hashed_one_by_one(run: CommittedRun) -> NDArray[np.uint64]:
    """The keys of the messages, found by decoding each message; nothing is put."""
    keys: list[str] = []
    for row in range(len(run)):
        message = decode_message(run.run.record(row), check_crc=False)
        keys += {message.unique_key or "", *message.keys}
    return key_hashes(keys, prefix=f"{TOPIC}#")


def measured(folder: Path) -> StoreFigures:
    runtime = Runtime.inline(now_ms=STORE_TIMESTAMP)
    config = StoreConfig(broker_name="broker", store_path=str(folder))
    with JsonMetadataStore.open(config.catalogue_path) as catalogue:
        topic_id = catalogue.add_topic(TOPIC).topic_id
        index = IndexStore(
            config, provider=MemoryProvider(runtime), metadata=catalogue, runtime=runtime
        )
        index.load()
        spent, plain = [], []
        for turn in range(TURNS):
            first = turn * RUNS_A_TURN * RUN_MESSAGES
            runs = [committed_run(first + number * RUN_MESSAGES) for number in range(RUNS_A_TURN)]
            started = time.perf_counter()
            for run in runs:
                index.put(TOPIC, topic_id, 0, run)
            spent.append(time.perf_counter() - started)
            started = time.perf_counter()
            for run in runs:
                hashed_one_by_one(run)
            plain.append(time.perf_counter() - started)
        started = time.perf_counter()
        index.shutdown()
        synced = time.perf_counter() - started
    keys = KEYS_A_MESSAGE * RUNS_A_TURN * RUN_MESSAGES
    return StoreFigures(
        keys_a_second=[keys / each for each in spent[FIRST_TURNS:]],
        plain_keys_a_second=[keys / each for each in plain[FIRST_TURNS:]],
        put_seconds=sum(spent),
        sync_seconds=synced,
    )

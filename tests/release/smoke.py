"""The smoke test of an environment that has the wheel and nothing of this checkout.

    python -I tests/release/smoke.py ENDPOINT

It imports every module, puts, offloads and finds messages, in a folder and in buckets of the S3
server at ENDPOINT, and lets the command look, check and export. The last line names the versions.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import pkgutil
import subprocess
import sys
import tempfile
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Final

import tieredstore
from tieredstore import Message, Runtime, StoreConfig, TieredMessageStore, TieredReader
from tieredstore.local import LocalConfig, LocalMessageStore
from tieredstore.providers.s3_admin import create_bucket
from tieredstore.providers.s3_settings import ObjectStoreSettings

MESSAGES: Final = 100
# These need pyspark, or pytest and hypothesis.
ELSEWHERE: Final = ("tieredstore.spark", "tieredstore.testing", "tieredstore.cli.submit")
SHOWN: Final = ("numpy", "fsspec", "msgspec", "pyarrow", "s3fs", "botocore", "obstore", "typer")
KEY: Final = "order-7"


def import_all() -> int:
    walked = pkgutil.walk_packages(tieredstore.__path__, "tieredstore.", onerror=lambda _: None)
    names = [each.name for each in walked if not each.name.startswith(ELSEWHERE)]
    for name in names:
        if not name.endswith("__main__"):
            importlib.import_module(name)
    return len(names)


def command(*words: str) -> str:
    tool = Path(sys.executable).with_name("tieredstore")
    ran = subprocess.run([tool, *words], capture_output=True, text=True, check=False)
    if ran.returncode:
        raise SystemExit(
            f"tieredstore {' '.join(words)}: {ran.returncode}\n{ran.stdout}{ran.stderr}"
        )
    return ran.stdout


def put_and_offload(config: StoreConfig) -> None:
    small = LocalConfig(
        store_path=config.store_path,
        commit_log_file_bytes=1 << 20,
        index_slot_count=config.index_slot_count,
        index_item_count=config.index_item_count,
    )
    with Runtime.threads() as runtime:
        local = LocalMessageStore(small, runtime)
        with TieredMessageStore(local, config, runtime=runtime) as store:
            for number in range(MESSAGES):
                keys = {"KEYS": f"order-{number}"}
                store.put_message(
                    Message(topic="orders", queue_id=0, body=b"x" * number, properties=keys)
                )
            assert store.flush(seal=True)
            assert store.committed_offset("orders", 0) == MESSAGES


def find(config: StoreConfig) -> None:
    with TieredReader.open(config) as reader:
        assert len(reader.get_message("orders", 0, 0, count_max=32).messages) == 32
        (found,) = reader.query_message("orders", KEY).messages
        assert found.body == b"x" * 7


def walk(config: StoreConfig, folder: Path) -> None:
    put_and_offload(config)
    elsewhere = replace(config, store_path=f"{folder}/elsewhere")
    find(elsewhere)
    names = ["broker_name", "provider", "path", "endpoint", "bucket", "region", "access_key"]
    names += ["secret_key", "object_client", "store_path", "index_slot_count", "index_item_count"]
    given = [(name, getattr(elsewhere, name)) for name in names]
    lines = [
        f"{name} = {value if isinstance(value, int) else repr(str(value))}" for name, value in given
    ]
    file = folder / "tier.toml"
    file.write_text("\n".join(["[tieredstore]", *lines]), encoding="utf-8")
    at = ("--config", str(file))
    assert "orders" in command("queues", *at)
    assert "orders/0" in command("query", "orders", KEY, *at)
    command("verify", *at)
    for kind in ("parquet", "delta"):
        command("export", *at, "--format", kind, "--to", str(folder / kind))


def main(endpoint: str) -> None:
    count, version = import_all(), importlib.metadata.version("tieredstore")
    assert "site-packages" in tieredstore.__file__, tieredstore.__file__
    assert tieredstore.__version__ == version
    assert command("--version") == f"tieredstore {version}\n"
    base = StoreConfig(broker_name="smoke", index_slot_count=1_000, index_item_count=4_000)
    for client in ("posix", "s3fs", "obstore"):
        with tempfile.TemporaryDirectory() as name:
            config = replace(
                base, provider="posix", path=f"{name}/tier", store_path=f"{name}/store"
            )
            if client != "posix":
                config = replace(
                    config,
                    provider="s3",
                    path="",
                    endpoint=endpoint,
                    bucket=f"smoke-{uuid.uuid4()}",
                    region="us-east-1",
                    access_key="testing",
                    secret_key="testing",
                    object_client=client,
                )
                create_bucket(ObjectStoreSettings.from_config(config))
            walk(config, Path(name))
    found = [f"{name} {importlib.metadata.version(name)}" for name in SHOWN]
    print(f"{count} modules; posix, s3 by s3fs and obstore; with {', '.join(found)}")


if __name__ == "__main__":
    main(sys.argv[1])

"""What a tier costs on an object store, as ratios to the bare client library in the same run.

64 range reads at once, as in a read of many parts, compared with the library's own call for many
ranges; commits of 8 MiB, compared with a bare create-only put. With s3fs and with obstore, against
a fast server on this machine. Prints one table; without the server it says so. Exits with 1 if a
promise is missed:

    python -m bench.object_store
"""

from __future__ import annotations

import itertools
import os
import sys
import uuid
from collections.abc import Callable, Sequence
from typing import Any, Final

from bench._s3_server import ministack
from bench._timing import Comparison, compare, report
from tieredstore.driver.object_client import Range
from tieredstore.driver.provider import SegmentWrite, WritePair
from tieredstore.driver.retry import RetryPolicy
from tieredstore.driver.runtime import Runtime
from tieredstore.model.values import SegmentType
from tieredstore.providers.object_provider import ObjectProvider, open_client
from tieredstore.providers.s3_admin import create_bucket
from tieredstore.providers.s3_settings import ObjectStoreSettings
from tieredstore.roundlog.object_calls import ObjectCalls

MIB: Final = 1 << 20
READS, READ_BYTES = 64, 8 << 10
SEGMENT_BYTES: Final = 32 * MIB
COMMIT: Final = os.urandom(8 * MIB)
PROMISED: Final = {"s3fs": 0.8, "obstore": 0.6}
LOG: Final = SegmentType.COMMIT_LOG
Ranges = Sequence[tuple[int, int]]


def main() -> int:
    with ministack() as endpoint:
        if endpoint is None:
            print("object_store: skipped: no ministack here: pip install ministack, or name a")
            print("Python that has it in TIEREDSTORE_BENCH_SERVER")
            return 0
        rows: list[Comparison] = []
        for client in PROMISED:
            with Runtime.threads() as runtime:
                rows += rows_of(client, endpoint, runtime)
        return report("object_store", rows)


def rows_of(client: str, endpoint: str, runtime: Runtime) -> list[Comparison]:
    settings = ObjectStoreSettings(
        bucket=f"bench-{uuid.uuid4().hex}",
        endpoint=endpoint,
        region="us-east-1",
        access_key="bench",
        secret_key="bench-secret",
        client=client,
    )
    create_bucket(settings)
    provider = ObjectProvider(open_client(settings), "DefaultCluster", runtime)
    segment = provider.open("broker-a/Bench/0", LOG, 0)
    for position in range(0, SEGMENT_BYTES, len(COMMIT)):
        segment.write(position, COMMIT)
    segment.seal()
    step = SEGMENT_BYTES // READS
    ranges = [(n * step, READ_BYTES) for n in range(READS)]
    calls = ObjectCalls(provider.counted, runtime, RetryPolicy())
    reads = [Range(segment.path, start, length) for start, length in ranges]
    get_ranges, put = BARE[client](settings, segment.path)
    wanted = [COMMIT[start % len(COMMIT) :][:length] for start, length in ranges]
    assert [bytes(each) for each in get_ranges(ranges)] == wanted
    assert calls.ranges(reads) == wanted
    grown = provider.open("broker-a/Grown/0", LOG, 0)
    positions = itertools.count(0, len(COMMIT))

    def commit() -> None:
        write = SegmentWrite(grown, next(positions), COMMIT)
        (done,) = provider.write_many([WritePair(log=write, queue=None)])
        done.result()

    rows = [
        compare(
            f"{client}: {READS} ranges of 8 KiB at once",
            plain=lambda: get_ranges(ranges),
            ours=lambda: calls.ranges(reads),
            promised=PROMISED[client],
            loops=2,
        ),
        compare(
            f"{client}: a commit of 8 MiB",
            plain=lambda: put(f"bare/{uuid.uuid4().hex}"),
            ours=commit,
            promised=PROMISED[client],
        ),
    ]
    provider.close()
    return rows


Bare = tuple[Callable[[Ranges], Sequence[bytes]], Callable[[str], object]]


def bare_s3fs(settings: ObjectStoreSettings, key: str) -> Bare:
    """As a program without this library would do it."""
    from s3fs import S3FileSystem

    fs: Any = S3FileSystem(
        endpoint_url=settings.endpoint,
        key=str(settings.access_key),
        secret=str(settings.secret_key),
        use_listings_cache=False,
        skip_instance_cache=True,
        config_kwargs={"max_pool_connections": settings.connections_max},
    )
    path = f"{settings.bucket}/{key}"

    def get_ranges(ranges: Ranges) -> Sequence[bytes]:
        starts, ends = [start for start, _ in ranges], [start + length for start, length in ranges]
        found: Sequence[bytes] = fs.cat_ranges([path] * len(ranges), starts, ends)
        return found

    return get_ranges, lambda key: fs.pipe_file(
        f"{settings.bucket}/{key}", COMMIT, mode="create", chunksize=2 * len(COMMIT)
    )


def bare_obstore(settings: ObjectStoreSettings, key: str) -> Bare:
    """Its own call for many ranges, told to merge none."""
    import obstore
    from obstore.store import S3Store

    store: Any = S3Store(
        settings.bucket,
        endpoint=settings.endpoint,
        region=settings.region,
        access_key_id=str(settings.access_key),
        secret_access_key=str(settings.secret_key),
        client_options={"allow_http": True},
    )

    def get_ranges(ranges: Ranges) -> Sequence[bytes]:
        found: Any = obstore.get_ranges(
            store,
            key,
            starts=[start for start, _ in ranges],
            lengths=[length for _, length in ranges],
            coalesce=0,
        )
        return [bytes(each) for each in found]

    return get_ranges, lambda key: obstore.put(store, key, COMMIT, mode="create")


BARE: Final[dict[str, Callable[[ObjectStoreSettings, str], Bare]]] = {
    "s3fs": bare_s3fs,
    "obstore": bare_obstore,
}

if __name__ == "__main__":
    sys.exit(main())

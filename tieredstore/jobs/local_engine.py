"""The items of a job on threads of this process.

What lives here: `LocalEngine`. What an item does is the job's; trying a request again is the
provider's.
"""

from __future__ import annotations

from collections.abc import Generator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Final, Self

from tieredstore.driver.runtime import PENDING_MAX, Runtime
from tieredstore.jobs.job import (
    Engine,
    ItemResult,
    ItemT,
    Job,
    OnProgress,
    Plan,
    Progress,
    RowT,
)
from tieredstore.jobs.job_report import ItemFailure
from tieredstore.model.errors import TieredStoreError

THREADS: Final = 8
THREADS_MAX: Final = 256


class LocalEngine(Engine):
    """Runs items on a bounded number of threads of its own.

    * As many items are under way as there are threads, and none waits: memory is bounded by what
      one item needs.
    * `stop` asks for an end from any thread: what is under way is finished, nothing more begins.
    * A bug in an item (an error that is neither ours nor the system's) ends the job and is raised.
    """

    def __init__(self, *, threads: int = THREADS, runtime: Runtime | None = None) -> None:
        self._threads = max(1, min(threads, THREADS_MAX))
        self._owns_runtime = runtime is None
        # Not the runtime of a provider: its pools must never wait for an item that waits for them.
        self._runtime = runtime or Runtime.threads(
            dispatch_threads=self._threads, fetch_threads=1, pending_max=PENDING_MAX
        )
        self._stopped = False

    def stop(self) -> None:
        self._stopped = True

    def results(
        self, job: Job[ItemT, RowT], plan: Plan[ItemT], *, on_progress: OnProgress
    ) -> Generator[ItemResult[RowT], None, None]:
        count, total = len(plan.items), plan.bytes_total
        under_way: set[Future[ItemResult[RowT]]] = set()
        begun = items_done = bytes_done = 0
        try:
            while True:
                while begun < count and len(under_way) < self._threads and not self._stopped:
                    call = self._runtime.dispatch.submit(run_item, job, plan.items[begun], begun)
                    under_way.add(call)
                    begun += 1
                if not under_way:
                    return
                ended, under_way = wait(under_way, return_when=FIRST_COMPLETED)
                for future in ended:
                    result = future.result()
                    items_done += 1
                    bytes_done += plan.bytes_of(result.number)
                    on_progress(
                        Progress(
                            items_done=items_done,
                            items_total=count,
                            bytes_done=bytes_done,
                            bytes_total=total,
                        )
                    )
                    yield result
        finally:
            self._leave(under_way)

    def _leave(self, under_way: set[Future[ItemResult[RowT]]]) -> None:
        """What runs is waited for: it uses what its caller is about to close."""
        for future in under_way:
            future.cancel()
        wait(under_way)

    def close(self) -> None:
        self._stopped = True
        if self._owns_runtime:
            self._runtime.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def run_item(job: Job[ItemT, RowT], item: ItemT, number: int) -> ItemResult[RowT]:
    """One item, its failure as a value: what the tier or the system refuses touches no other."""
    try:
        return ItemResult(number=number, rows=tuple(job.work(item)))
    except (TieredStoreError, OSError) as error:
        return ItemResult(number=number, failure=ItemFailure.of(error))

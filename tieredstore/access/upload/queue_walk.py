"""Looking at queues, one after the other, and beginning what each of them needs.

What lives here: `QueueWalk` and `Look`. When to look, and at which queues, is for the dispatcher;
what a queue needs is told in `queue_rules`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final

from tieredstore.access.upload.batches import Batches, Taken
from tieredstore.access.upload.queue_chores import QueueChores
from tieredstore.access.upload.queue_claims import QueueClaims
from tieredstore.access.upload.queue_rules import Action, Decision, QueueRules
from tieredstore.access.upload.queue_work import QueueWork
from tieredstore.access.upload.rounds import Rounds
from tieredstore.access.upload.upload_budget import UploadBudget
from tieredstore.driver.message_store import MessageStore
from tieredstore.driver.runtime import Runtime
from tieredstore.model.config import MIB
from tieredstore.model.errors import StoreClosedError
from tieredstore.model.printable import log_of
from tieredstore.model.values import QueueKey

log = log_of(__name__)

ROUND_BYTES: Final = 32 * MIB  # a round with more than that is sent before others are gathered


@dataclass(slots=True)
class Look:
    """How to walk over some queues, and what came of it."""

    force: bool = False
    targets: dict[QueueKey, int] | None = None  # where to end; None: as far as there is something
    only_sound: bool = False  # leave out queues whose last attempt failed
    under_way: list[QueueKey] = field(default_factory=list)  # `ended` is told of them
    put_off: list[QueueKey] = field(default_factory=list)  # for lack of room, or for another's work
    unconfirmed: list[QueueKey] = field(default_factory=list)
    given_back: int = 0  # claims, by the walk itself: no news for who waits for others


class QueueWalk:
    """Walks over queues in its caller's thread; any number of threads may.

    A queue is claimed while something is done with it, here or in a pool. Each claim ends with
    `ended`, whatever became of the work. A queue that fails never stops the others.
    """

    def __init__(
        self,
        store: MessageStore,
        rules: QueueRules,
        chores: QueueChores,
        batches: Batches,
        rounds: Rounds,
        claims: QueueClaims,
        budget: UploadBudget,
        runtime: Runtime,
        *,
        ended: Callable[[QueueWork], None],
    ) -> None:
        self._store = store
        self._rules = rules
        self._chores = chores
        self._batches = batches
        self._rounds = rounds
        self._claims = claims
        self._budget = budget
        self._runtime = runtime
        self._tell = ended
        self.works: dict[QueueKey, QueueWork] = {}
        self.is_stopped = False

    def work_of(self, key: QueueKey) -> QueueWork:
        return self.works.get(key) or self.works.setdefault(key, QueueWork(key))

    def resume(self, key: QueueKey) -> str | None:
        """Go on with a stopped queue, or say why not; for who has its claim."""
        work = self.work_of(key)
        self._chores.renew(work)
        return self._chores.resume(work)

    def walk(self, keys: Iterable[QueueKey], look: Look) -> None:
        """Begin what each of them needs, and send what there is to send, in rounds."""
        todo = deque(keys)
        gathered: list[QueueWork] = []
        gathered_bytes = 0
        try:
            while todo and not self.is_stopped:
                key = todo.popleft()
                work = self.work_of(key)
                if look.only_sound and work.failure is not None:
                    continue
                if not self._claims.take(key):
                    look.put_off.append(key)
                    continue
                taken = self._look_at(work, look)
                if taken is Taken.NO_ROOM:
                    look.put_off += [key, *todo]
                    break
                if taken is Taken.APPENDED:
                    gathered.append(work)
                    gathered_bytes += work.buffered_bytes
                    if gathered_bytes >= ROUND_BYTES:
                        self._rounds.send(gathered)
                        gathered, gathered_bytes = [], 0
        except StoreClosedError:
            log.info("the store is closed: nothing more is uploaded")
        if gathered:
            self._rounds.send(gathered)

    def forget_others(self, keys: Collection[QueueKey]) -> None:
        """Nothing is kept of queues that are gone."""
        for key in [each for each in list(self.works) if each not in keys]:
            if not self._claims.take(key):
                continue
            work = self.works[key]
            self._chores.renew(work)
            if work.file is None:
                del self.works[key]
            self._claims.give(key)

    def _look_at(self, work: QueueWork, look: Look) -> Taken | None:
        """What became of the next batch, where it is time for one. The claim is given back unless
        something of the queue is under way then."""
        key = work.key
        under_way = False
        taken: Taken | None = None
        try:
            self._chores.renew(work)
            target = None
            if look.targets is not None:
                target = look.targets.setdefault(key, self._store.max_offset(*key) or 0)
            decision = self._rules.decide(work, force=look.force, target=target)
            if decision.action in (Action.COMMIT, Action.UPLOAD):
                taken = self._take(work, decision, look)
                under_way = taken is Taken.APPENDED
                if taken is Taken.UNCONFIRMED:
                    look.unconfirmed.append(key)
            elif decision.chore is not None:
                under_way = True
                self._start_chore(work, decision.chore)
            elif decision.action is Action.NOTHING:
                work.failure = None
        except StoreClosedError:
            under_way = False
            raise
        except Exception as error:  # noqa: BLE001 - one queue never stops the others
            log.warning("%s/%s: %s", key.topic, key.queue_id, error)
            work.failed(error)
        finally:
            if not under_way:
                self._give_back(key, look)
        if under_way:
            look.under_way.append(key)
        return taken

    def _take(self, work: QueueWork, decision: Decision, look: Look) -> Taken:
        """The permit of an upload, and what is to be uploaded."""
        file = work.file
        assert file is not None
        if not self._budget.start_upload():
            return Taken.NO_ROOM
        taken = Taken.NO_ROOM
        try:
            if decision.action is Action.COMMIT:
                taken = Taken.APPENDED
            else:
                taken = self._batches.take(work, file)
                if taken is Taken.NO_ROOM and self._relieve(look):
                    taken = self._batches.take(work, file)
        finally:
            if taken is not Taken.APPENDED:
                self._budget.end_upload()
        return taken

    def _relieve(self, look: Look) -> bool:
        """Give back the memory of batches whose upload failed; they are read again later."""
        relieved = False
        for work in list(self.works.values()):
            if work.failure is None or not work.batches or not self._claims.take(work.key):
                continue
            if work.file is not None and work.file.waiting_bytes:
                relieved |= self._batches.drop(work, work.file)
            self._give_back(work.key, look)
        return relieved

    def _give_back(self, key: QueueKey, look: Look) -> None:
        look.given_back += 1
        self._claims.give(key)

    def _start_chore(self, work: QueueWork, chore: Callable[[], None]) -> None:
        future: Future[None] = self._runtime.dispatch.submit(self._do_chore, work, chore)
        if future.done():
            future.result()  # what no chore may hide: it is not ours

    def _do_chore(self, work: QueueWork, chore: Callable[[], None]) -> None:
        try:
            chore()
        except Exception as error:  # noqa: BLE001
            log.warning("%s/%s: %s", work.key.topic, work.key.queue_id, error)
            work.failed(error)
        self._tell(work)

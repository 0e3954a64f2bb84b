"""Live clients by their heartbeats: the consumers of each group, and who holds a queue."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from examples.broker.commands import Answer, Ask, Code, RefusedError, Request, json_body
from examples.broker.tables import RETRY, Topics, require_group, topic_of

if TYPE_CHECKING:
    from examples.broker.server import Connection

SILENT_SECONDS: Final = 120.0
LOCK_SECONDS: Final = 60.0
CONSUMERS_MAX: Final = 10_000  # clients of all groups, each once for each of its groups
WANTED_CHARACTERS_MAX: Final = 32 << 20  # of the subscriptions of all groups
GROUPS_MAX: Final = 2_000
HEARTBEAT_BYTES_MAX: Final = 256 << 10
LOCKS_MAX: Final = 100_000
IN_ONE_MAX: Final = 10_000
NAME_CHARACTERS_MAX: Final = 255  # of a topic or a broker whose queue is locked
CLIENT_CHARACTERS_MAX: Final = 1_024

_Queue = tuple[str, str, int]


@dataclass(slots=True)
class Consumer:
    """One client of a group."""

    connection: Connection
    heard_at: float


@dataclass(slots=True)
class Group:
    """The consumers by client id, and what they want of each topic: expression and its kind."""

    consumers: dict[str, Consumer] = field(default_factory=dict)
    subscriptions: dict[str, tuple[str, str]] = field(default_factory=dict)
    characters: int = 0  # of the subscriptions


class Groups:
    """Live consumers. When they change, those of the group are told and share the queues anew."""

    def __init__(self, topics: Topics, now: Callable[[], float]) -> None:
        self._topics = topics
        self._now = now
        self._groups: dict[str, Group] = {}
        self._consumers = self._characters = 0  # of all groups
        self._locks: dict[tuple[str, _Queue], tuple[str, float]] = {}

    def heartbeat(self, request: Request) -> Answer:
        if len(request.body) > HEARTBEAT_BYTES_MAX:  # most of it is kept
            raise RefusedError(Code.SYSTEM_ERROR, f"more than {HEARTBEAT_BYTES_MAX} bytes")
        content = request.json()
        client = _client_of(content, "clientID")
        for found in _objects(content.get("consumerDataSet")):
            self._note(client, found, request.connection)
        return Answer()

    def unregister(self, request: Request) -> Answer:
        name = request.command.fields.get("consumerGroup")
        group = self._groups.get(name) if name else None
        if name and group is not None and group.consumers.pop(request.text("clientID"), None):
            self._consumers -= 1
            self._changed(name, group)
        return Answer()

    def consumers(self, request: Request) -> Answer:
        group = self._groups.get(request.text("consumerGroup"))
        if group is None or not group.consumers:
            raise RefusedError(Code.SYSTEM_ERROR, "the group has no consumer")
        return Answer(body=json_body({"consumerIdList": sorted(group.consumers)}))

    def subscription(self, group: str, topic: str) -> tuple[str, str] | None:
        found = self._groups.get(group)
        return None if found is None else found.subscriptions.get(topic)

    def left(self, connection: Connection) -> None:
        """Forget the clients of a connection that is gone."""
        self._drop(lambda consumer: consumer.connection is connection)

    def look(self) -> None:
        """Forget clients that have been silent for too long, and locks that nobody renewed."""
        oldest = self._now() - SILENT_SECONDS
        self._drop(lambda consumer: consumer.heard_at < oldest)
        now = self._now()
        for key in [key for key, (_, until) in self._locks.items() if until <= now]:
            del self._locks[key]

    # -- queues that one consumer has for itself ----------------------------------------------

    def lock(self, request: Request) -> Answer:
        """Lock queues for the client, for a minute unless it asks again; returns those it got."""
        group, client, queues = _wanted(request.json())
        now = self._now()
        given = []
        for queue, found in queues:
            holder, until = self._locks.get((group, queue), ("", 0.0))
            is_free = holder == client or until <= now
            if is_free and (holder or len(self._locks) < LOCKS_MAX):
                self._locks[group, queue] = client, now + LOCK_SECONDS
                given.append(found)
        return Answer(body=json_body({"lockOKMQSet": given}))

    def unlock(self, request: Request) -> Answer:
        group, client, queues = _wanted(request.json())
        for queue, _ in queues:
            if self._locks.get((group, queue), ("", 0.0))[0] == client:
                del self._locks[group, queue]
        return Answer()

    # -----------------------------------------------------------------------------------------

    def _note(self, client: str, found: dict[str, Any], connection: Connection) -> None:
        name = require_group(str(found.get("groupName")))
        subscriptions = {
            str(each.get("topic")): (
                str(each.get("subString") or "*"),
                str(each.get("expressionType") or "TAG"),
            )
            for each in _objects(found.get("subscriptionDataSet"))
        }
        characters = sum(len(topic) + sum(map(len, how)) for topic, how in subscriptions.items())
        group = self._groups.get(name)
        known = None if group is None else group.consumers.get(client)
        if known is None and self._consumers >= CONSUMERS_MAX:
            raise RefusedError(Code.SYSTEM_ERROR, f"there are {CONSUMERS_MAX} consumers already")
        more = characters - (0 if group is None else group.characters)
        if more > 0 and self._characters + more > WANTED_CHARACTERS_MAX:
            raise RefusedError(Code.SYSTEM_ERROR, "the subscriptions of all groups are too long")
        if group is None:
            if len(self._groups) >= GROUPS_MAX:
                raise RefusedError(Code.SYSTEM_ERROR, f"there are {GROUPS_MAX} groups already")
            # Messages that the group sends back come again in this topic.
            if self._topics.get(RETRY + name) is None:
                self._topics.set(topic_of(RETRY + name, 1))
            group = self._groups[name] = Group()  # only if all is valid: an empty group stays
        is_new = known is None or known.connection is not connection
        has_changed = subscriptions != group.subscriptions
        self._consumers += known is None
        self._characters += more
        group.consumers[client] = Consumer(connection, self._now())
        group.subscriptions, group.characters = subscriptions, characters
        if is_new or has_changed:
            self._changed(name, group)

    def _drop(self, goes: Callable[[Consumer], bool]) -> None:
        for name, group in list(self._groups.items()):
            gone = [client for client, each in group.consumers.items() if goes(each)]
            for client in gone:
                del group.consumers[client]
            self._consumers -= len(gone)
            if gone:
                self._changed(name, group)

    def _changed(self, name: str, group: Group) -> None:
        if not group.consumers:
            self._characters -= group.characters
            self._groups.pop(name, None)
        for connection in {each.connection for each in group.consumers.values()}:
            connection.tell(Ask.CONSUMER_IDS_CHANGED, consumerGroup=name)


def _objects(found: object) -> Iterator[dict[str, Any]]:
    """The objects of a list that a client sent."""
    if not isinstance(found, list):
        return
    if len(found) > IN_ONE_MAX:
        raise RefusedError(Code.SYSTEM_ERROR, f"more than {IN_ONE_MAX} in one request")
    yield from (each for each in found if isinstance(each, dict))


def _client_of(content: dict[str, Any], name: str) -> str:
    client = content.get(name)
    if not isinstance(client, str) or not 0 < len(client) <= CLIENT_CHARACTERS_MAX:
        raise RefusedError(
            Code.SYSTEM_ERROR, f"no {name}, or one of more than {CLIENT_CHARACTERS_MAX} characters"
        )
    return client


def _wanted(content: dict[str, Any]) -> tuple[str, str, list[tuple[_Queue, dict[str, Any]]]]:
    """Group, client, and the queues they want, each also in the form in which it was sent."""
    group = require_group(str(content.get("consumerGroup")))
    client = _client_of(content, "clientId")
    queues = []
    for found in _objects(content.get("mqSet")):
        topic, broker, queue_id = (found.get(name) for name in ("topic", "brokerName", "queueId"))
        if not (isinstance(topic, str) and isinstance(broker, str) and isinstance(queue_id, int)):
            raise RefusedError(Code.SYSTEM_ERROR, "a queue without topic, broker or number")
        if max(len(topic), len(broker)) > NAME_CHARACTERS_MAX:
            raise RefusedError(Code.SYSTEM_ERROR, f"a name of more than {NAME_CHARACTERS_MAX}")
        queues.append(((topic, broker, queue_id), found))
    return group, client, queues

"""The name server's part: which queues a topic has, and where the broker is."""

from __future__ import annotations

from typing import Any, Final

from examples.broker.commands import INT32_MAX, Answer, Code, RefusedError, Request, json_body
from examples.broker.tables import READ, WRITE, Topics, topic_of

_LEADER: Final = "0"  # the id of a broker that takes messages
_AS_ALL_ARE: Final = {"+cleanup.policy=DELETE", "+queue.type=SimpleCQ"}
_TYPE: Final = "+message.type="  # for proxies; a topic here takes messages of each type


class Routes:
    """Answers where topics are: always here, since this name server knows only one broker."""

    def __init__(self, topics: Topics, *, address: str, broker: str, cluster: str) -> None:
        self._topics = topics
        self._broker = {
            "cluster": cluster,
            "brokerName": broker,
            "brokerAddrs": {_LEADER: address},
            "enableActingMaster": False,
        }
        self._name = broker
        self._cluster = cluster

    def route(self, request: Request) -> Answer:
        name = request.text("topic")
        topic = self._topics.get(name)
        if topic is None:
            raise RefusedError(Code.TOPIC_NOT_EXIST, f"No topic route info for {name!r:.140}")
        queues = {
            "brokerName": self._name,
            "readQueueNums": topic.read_queue_count,
            "writeQueueNums": topic.write_queue_count,
            "perm": topic.perm,
            "topicSysFlag": 0,
        }
        return _json(
            {"brokerDatas": [self._broker], "filterServerTable": {}, "queueDatas": [queues]}
        )

    def cluster(self, request: Request) -> Answer:
        return _json(
            {
                "brokerAddrTable": {self._name: self._broker},
                "clusterAddrTable": {self._cluster: [self._name]},
            }
        )

    def topics(self, request: Request) -> Answer:
        return _json({"topicList": sorted(topic.name for topic in self._topics.all())})

    async def create(self, request: Request) -> Answer:
        """Make a topic, or change its queues and permissions; on disk before the answer."""
        wanted = {each for each in request.text("attributes", "").split(",") if each}
        for each in wanted - _AS_ALL_ARE:  # a promise that nobody here would keep
            if not each.startswith(_TYPE):
                raise RefusedError(Code.SYSTEM_ERROR, f"{each!r:.140} is not supported")
        self._topics.set(
            topic_of(
                request.text("topic"),
                request.number("readQueueNums", 8, maximum=INT32_MAX),
                request.number("writeQueueNums", 8, maximum=INT32_MAX),
                perm=request.number("perm", READ | WRITE, maximum=READ | WRITE | 1),
            )
        )
        await self._topics.keep()
        return Answer()


def _json(content: dict[str, Any]) -> Answer:
    return Answer(body=json_body(content))

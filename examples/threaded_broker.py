"""A tiny broker of threads, over HTTP: its messages are in a local store with a tier behind it.

python examples/threaded_broker.py [--port 9877] [--store DIRECTORY]

curl -d hello '127.0.0.1:9877/orders/0?key=order-1'    put
curl '127.0.0.1:9877/orders/0?offset=0'                pull
curl '127.0.0.1:9877/orders?key=order-1'               find
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from tieredstore import Message, Runtime, StoreConfig, TieredMessageStore, TieredStoreError
from tieredstore.codec.message import decode_message
from tieredstore.local import LocalConfig, LocalMessageStore
from tieredstore.model.messages import SelectedMessage

BODY_BYTES_MAX = 1 << 20
ENDING = {signal.SIGINT, signal.SIGTERM}


class Broker(ThreadingHTTPServer):
    """A thread for each connection; all call the same store, and end before it is closed."""

    daemon_threads = False  # else nobody waits for them

    def __init__(self, port: int, store: TieredMessageStore) -> None:
        super().__init__(("127.0.0.1", port), Connection)
        self.store = store

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), OSError):  # OSError: the client is gone
            super().handle_error(request, client_address)


class Connection(BaseHTTPRequestHandler):
    server: Broker
    timeout = 10  # seconds that a silent client may keep the broker from ending

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "0")
        is_short = length.isdecimal() and len(length) <= len(str(BODY_BYTES_MAX))
        size = int(length) if is_short else BODY_BYTES_MAX + 1
        if size > BODY_BYTES_MAX:
            self._reply(413, {"error": f"more than {BODY_BYTES_MAX} bytes"})
            return
        body = self.rfile.read(size)
        if len(body) < size:  # half a message does not count
            self._reply(400, {"error": f"{len(body)} bytes of {size}"})
        else:
            self._answer(body)

    def do_GET(self) -> None:
        self._answer(None)

    def _answer(self, body: bytes | None) -> None:
        try:
            url = urlsplit(self.path)
            topic, *queue = url.path.strip("/").split("/")
            asked, store = dict(parse_qsl(url.query)), self.server.store
            if body is not None:
                properties = {"KEYS": asked["key"]} if "key" in asked else {}
                result = store.put_message(
                    Message(topic=topic, queue_id=int(queue[0]), body=body, properties=properties)
                )
                answer = {"status": result.status.name, "offset": result.queue_offset}
            elif queue:
                page = store.get_message(topic, int(queue[0]), int(asked.get("offset", 0)))
                answer = {"status": page.status.name, "next": page.next_offset}
                answer["bodies"] = bodies(page.messages)
            else:
                found = store.query_message(topic, asked["key"])
                answer = {"complete": found.complete, "bodies": bodies(found.messages)}
        except (KeyError, IndexError, ValueError, TieredStoreError) as error:
            self._reply(400, {"error": f"{type(error).__name__}: {error}"})
        else:
            self._reply(200, answer)

    def _reply(self, status: int, answer: dict[str, Any]) -> None:
        text = json.dumps(answer).encode() + b"\n"
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: Any) -> None:
        pass


def bodies(messages: Sequence[SelectedMessage]) -> list[str]:
    return [decode_message(each.record).body.decode() for each in messages]


def main() -> None:
    parser = argparse.ArgumentParser(description="A tiny broker of threads.")
    parser.add_argument("--port", type=int, default=9877)
    parser.add_argument(
        "--store", default="threaded-broker-store", help="folder of its store and its tier"
    )
    options = parser.parse_args()
    config = StoreConfig(
        broker_name="threaded-broker",
        provider="posix",
        path=f"{options.store}/tier",
        store_path=options.store,
    )
    # Signals are waited for below: an exception here could interrupt a request that is being read.
    # Threads inherit the mask, so it is set before there are any.
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    with Runtime.threads() as runtime:
        # Otherwise each file of its log reserves a GiB, as RocketMQ's do.
        small = LocalConfig(store_path=options.store, commit_log_file_bytes=16 << 20)
        local = LocalMessageStore(small, runtime)
        store = TieredMessageStore(local, config, runtime=runtime)
        with store, Broker(options.port, store) as broker:
            port = broker.server_port
            threading.Thread(target=broker.serve_forever).start()
            print(f"listening on 127.0.0.1:{port}; Ctrl-C uploads what is left", flush=True)
            signal.sigwait(ENDING)
            broker.shutdown()
    print("ended")


if __name__ == "__main__":
    main()

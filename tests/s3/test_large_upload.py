"""A 600 MB index is uploaded as a stream, in its own process whose memory is measured."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, parse_qsl, unquote, urlsplit

import pytest

from tests.loopback import running
from tests.s3.moto_server import list_result
from tests.s3.s3_clients import CLIENTS

MIB = 1 << 20
INDEX_MIB = 600
MEMORY_MIB = 64

# It needs its own process: memory that the test run holds would hide what an upload takes.
UPLOAD = """
import json, sys, threading
from tieredstore.driver.runtime import Runtime
from tieredstore.model.values import SegmentType
from tieredstore.providers.object_provider import open_client
from tieredstore.providers.object_provider import ObjectProvider
from tieredstore.providers.s3_settings import ObjectStoreSettings

def anonymous_mib():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("RssAnon")) / 1024

settings = ObjectStoreSettings(bucket="tier", endpoint=sys.argv[1], region="us-east-1",
                               access_key="testing", secret_key="not-a-secret", client=sys.argv[2])
provider = ObjectProvider(open_client(settings), "DefaultCluster", Runtime.inline())
provider.open("broker-a/T/0", SegmentType.COMMIT_LOG, 0).write(0, b"warm")
# What libraries take when they are first used is no matter of how much goes up.
small = provider.open("broker-a/rmq_sys_INDEX/0", SegmentType.INDEX, 1 << 30)
provider.create(small, [bytes(9 << 20)])
before, most = anonymous_mib(), 0.0
done = threading.Event()

def watch():
    global most
    while not done.wait(0.005):
        most = max(most, anonymous_mib())

watcher = threading.Thread(target=watch, daemon=True)
watcher.start()
block = bytes(1 << 20)
index = provider.open("broker-a/rmq_sys_INDEX/0", SegmentType.INDEX, 0)
made = provider.create(index, (block for _ in range(int(sys.argv[3]))))
done.set()
watcher.join()
print(json.dumps({"made": made, "grown_mib": most - before}))
"""


class Discarding(BaseHTTPRequestHandler):
    """As much of S3 as an upload needs: it counts bytes and throws them away, and lists keys."""

    protocol_version = "HTTP/1.1"
    sizes: dict[str, int] = {}  # noqa: RUF012 - one server, one test

    def do_PUT(self) -> None:
        size = self._drain()
        asked = parse_qs(urlsplit(self.path).query)
        key = urlsplit(self.path).path
        self.sizes[key] = self.sizes.get(key, 0) + size if "partNumber" in asked else size
        self._answer(200, b"")

    def do_POST(self) -> None:
        said = self._drain_small()
        if "uploads" in urlsplit(self.path).query:
            body = "<InitiateMultipartUploadResult><UploadId>u</UploadId>"
            body += "</InitiateMultipartUploadResult>"
        elif "uploadId" in urlsplit(self.path).query:
            body = "<CompleteMultipartUploadResult><ETag>e</ETag></CompleteMultipartUploadResult>"
        else:
            keys = re.findall(r"<Key>.*?</Key>", said)
            deleted = "".join(f"<Deleted>{each}</Deleted>" for each in keys)
            body = f"<DeleteResult>{deleted}</DeleteResult>"
        self._answer(200, body.encode())

    def do_GET(self) -> None:
        asked = dict(parse_qsl(urlsplit(self.path).query))
        keys = sorted(unquote(path).removeprefix("/tier/") for path in self.sizes)
        begin, after = asked["prefix"], asked.get("start-after", "")
        listed = (key for key in keys if key.startswith(begin) and key > after)
        self._answer(200, list_result(listed).get_data())

    def do_HEAD(self) -> None:
        self._answer(404, b"")

    def do_DELETE(self) -> None:
        self._answer(204, b"")

    def _drain_small(self) -> str:
        return self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()

    def _drain(self) -> int:
        left = size = int(self.headers.get("Content-Length", 0))
        while left:
            left -= len(self.rfile.read(min(left, MIB)))
        return size

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("ETag", '"e"')
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.mark.slow
@pytest.mark.parametrize("name", CLIENTS)
def test_a_large_index_goes_up_in_little_memory(s3_environment: None, name: str) -> None:
    Discarding.sizes.clear()
    with running(ThreadingHTTPServer(("127.0.0.1", 0), Discarding)) as endpoint:
        ran = subprocess.run(
            [sys.executable, "-c", UPLOAD, endpoint, name, str(INDEX_MIB)],
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
    assert ran.returncode == 0, ran.stderr
    outcome = json.loads(ran.stdout)
    assert outcome["made"] == INDEX_MIB * MIB
    assert max(Discarding.sizes.values()) == INDEX_MIB * MIB
    assert outcome["grown_mib"] <= MEMORY_MIB

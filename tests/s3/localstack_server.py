"""Run a command beside LocalStack's S3, a stricter server than moto: `make test-s3`.

The server has its own environment, `.s3srv`, since it pins what we do not. It listens on this
machine only, and ends with the command. If TIEREDSTORE_S3_ENDPOINT already names a server, the
command just runs.

    python tests/s3/localstack_server.py <command> [<argument> ...]
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

ENDPOINT = "TIEREDSTORE_S3_ENDPOINT"
FOLDER = Path(__file__).parents[2] / ".s3srv"
VERSION = "4.13.1"
# What LocalStack needs, with the versions that it does not pin itself.
PACKAGES = (
    f"localstack-core[base-runtime]=={VERSION}",
    "cbor2<6",
    "pyopenssl<26",
    "cryptography<47",
)
START_SECONDS = 120.0
_TURN = threading.Event()  # never set: waiting for it is a sleep


def main(command: Sequence[str]) -> int:
    if not command:
        _log(__doc__ or "")
        return 2
    if os.environ.get(ENDPOINT):
        return subprocess.run(command, check=False).returncode
    python = set_up(FOLDER)
    with running(python, FOLDER / "run") as endpoint:
        return subprocess.run(
            command, check=False, env={**os.environ, ENDPOINT: endpoint}
        ).returncode


def set_up(folder: Path) -> Path:
    """The environment's Python; the environment is made if missing or of another version."""
    python, stamp = folder / "bin" / "python", folder / f".has-{VERSION}"
    if not stamp.exists():
        _log(f"setting up LocalStack {VERSION} in {folder}: a minute or two, once")
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--no-input"]
        subprocess.run([*pip, *PACKAGES], check=True, stdin=subprocess.DEVNULL)
        stamp.touch()
    return python


@contextmanager
def running(python: Path, folder: Path) -> Iterator[str]:
    """Run a server until the block ends, and give its address."""
    folder.mkdir(parents=True, exist_ok=True)
    port = _free_port()
    with (folder / "server.log").open("w") as said:
        server = subprocess.Popen(
            [str(python), "-m", "localstack.runtime.main"],
            cwd=folder,
            env=_environment(folder, port),
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
        )
        try:
            _await(server, port, folder / "server.log")
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()
            try:
                server.wait(30)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def _environment(folder: Path, port: int) -> Mapping[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in ("PATH", "HOME", "LANG", "TMPDIR")
    }
    return {
        **kept,
        "OVERRIDE_IN_DOCKER": "0",
        "GATEWAY_SERVER": "hypercorn",
        "GATEWAY_LISTEN": f"127.0.0.1:{port}",
        "SERVICES": "s3",
        "EAGER_SERVICE_LOADING": "1",
        "DNS_ADDRESS": "0",
        "DISABLE_EVENTS": "1",
        "SKIP_SSL_CERT_DOWNLOAD": "1",
        "LS_LOG": "error",
        "FILESYSTEM_ROOT": str(folder),
        "LOCALSTACK_VOLUME_DIR": str(folder),
    }


def _await(server: subprocess.Popen[bytes], port: int, said: Path) -> None:
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until and server.poll() is None:
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{port}/_localstack/health", timeout=5
            ) as reply:
                if reply.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            _TURN.wait(0.3)
    raise RuntimeError(f"LocalStack does not answer; it said: {said.read_text()[-2000:]}")


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def _log(text: str) -> None:
    sys.stderr.write(f"{text}\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

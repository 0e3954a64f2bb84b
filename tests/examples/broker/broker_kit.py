"""The example broker as its user runs it: as its own process, killed or ended well."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from tests.examples.broker.remoting import Remoting
from tests.examples.example_kit import ROOT, environment

# Small files that are deleted as soon as the tier has them.
COLD = """
[local]
store_path = "{folder}/store"
commit_log_file_bytes = 65536
queue_file_bytes = 2000
reserve_hours = 0
expiry_interval_ms = 50

[tieredstore]
store_path = "{folder}/store"
broker_name = "example"
provider = "posix"
path = "{folder}/tier"
dispatch_interval_ms = 50
group_commit_timeout_ms = 50
publish_interval_ms = 1000

[broker]
port = 0
"""


class Running:
    """A broker that listens."""

    def __init__(self, process: subprocess.Popen[str], errors: IO[str]) -> None:
        self.process = process
        self._errors = errors
        assert process.stdout is not None
        told = process.stdout.readline()
        self.grpc_port = -1
        if told.startswith("gRPC on "):
            self.grpc_port = int(told.rpartition(":")[2])
            told = process.stdout.readline()
        assert told.startswith("listening on "), (told, self.errors())
        self.port = int(told.rpartition(":")[2])

    def client(self, *, binary: bool = False) -> Remoting:
        return Remoting(self.port, binary=binary)

    def errors(self) -> str:
        self._errors.seek(0)
        return self._errors.read()

    @property
    def peak_bytes(self) -> int:
        """The most memory that it has ever used."""
        status = Path(f"/proc/{self.process.pid}/status").read_text(encoding="utf-8")
        (line,) = [line for line in status.splitlines() if line.startswith("VmHWM")]
        return int(line.split()[1]) * 1024

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def running(
    folder: Path,
    *words: object,
    is_quiet: bool = True,
    ulimit: str = "",
    **variables: str,
) -> Iterator[Running]:
    """Run a broker; check that it ends well unless killed and, if `is_quiet`, reports no errors.
    `ulimit`: what the shell's command of that name limits first."""
    if not words:
        words = ("--store", folder / "store", "--tier", f"posix:{folder}/tier", "--port", 0)
    command = [sys.executable, "-W", "error", "-m", "examples.broker", *map(str, words)]
    if ulimit:
        command = ["sh", "-c", f'ulimit {ulimit} && exec "$@"', "sh", *command]
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "errors.txt", "w+", encoding="utf-8") as errors:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment(**variables),
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        with process:
            try:
                broker = Running(process, errors)
                yield broker
            except BaseException:
                process.kill()
                raise
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                out, _ = process.communicate(timeout=120)
                assert (process.returncode, out) == (0, "ended\n"), broker.errors()
            if is_quiet:
                assert broker.errors() == ""


def cold_config(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "broker.toml"
    path.write_text(COLD.format(folder=folder), encoding="utf-8")
    return path


async def until(is_so: Callable[[], bool]) -> None:
    """Give turns of the event loop to others until it is so."""
    loop = asyncio.get_running_loop()
    while not is_so():
        turn = loop.create_future()
        loop.call_soon(turn.set_result, None)
        await turn

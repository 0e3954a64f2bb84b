"""Connections of clients: frames in, answers out, and bounds on what each of them can hold."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, cast

from examples.broker.commands import Answer, Ask, Code, RefusedError, Request
from examples.broker.frames import (
    FRAME_BYTES_MAX,
    HEADER_BYTES_MAX,
    ONE_WAY,
    Command,
    FrameDecoder,
    FrameError,
    encode,
)
from tieredstore import Host, InvalidArgumentError, StoreClosedError, TieredStoreError

log = logging.getLogger(__name__)

Handler: TypeAlias = Callable[[Request], Answer | Awaitable[Answer]]

LOOK_SECONDS: Final = 1.0
ROOMS: Final = 8  # large answers of one connection that are made at the same time
END_SECONDS: Final = 2.0
TOGETHER_BYTES: Final = 64 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much of this process clients may use."""

    connections: int = 1_024
    frame_bytes: int = FRAME_BYTES_MAX
    header_bytes: int = HEADER_BYTES_MAX
    in_flight: int = 2_048  # unanswered requests of one connection; then it is not read
    unsent_bytes: int = 1 << 20  # of one connection; then it is not read either
    pending_bytes: int = 128 << 20  # of all unanswered requests; and again of all unfinished frames
    idle_seconds: float = 180.0  # without a byte from a client; heartbeats come every 30
    stalled_seconds: float = 60.0  # that a client may leave answers unread


class Connection(asyncio.Protocol):
    """One client. Its requests are read only as fast as it reads its answers."""

    def __init__(self, server: Server) -> None:
        self._server = server
        limits = server.limits
        self._decoder = FrameDecoder(
            frame_bytes_max=limits.frame_bytes, header_bytes_max=limits.header_bytes
        )
        self._in_flight = 0
        self._rooms = asyncio.Semaphore(ROOMS)
        self._may_write = asyncio.Event()
        self._may_write.set()
        self._transport: asyncio.Transport | None = None
        self._unsent: list[bytes] = []
        self._unsent_bytes = 0
        self.host = Host(b"\x7f\x00\x00\x01", 0)
        self.heard_at = self.stalled_at = server.now()

    # -- called by asyncio --------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=self._server.limits.unsent_bytes)
        self.host = _host_of(transport.get_extra_info("peername"))
        if not self._server.take_in(self):
            self.abort()

    def data_received(self, data: bytes) -> None:
        self.heard_at = self._server.now()
        self._decoder.feed(data)
        self._take()

    def pause_writing(self) -> None:
        self.stalled_at = self._server.now()
        self._may_write.clear()
        self._pace()

    def resume_writing(self) -> None:
        self._may_write.set()
        self._pace()
        self._take()

    def connection_lost(self, reason: Exception | None) -> None:
        self._transport = None
        self._may_write.set()  # nobody waits for a client that is gone
        self._server.let_go(self)

    # -- called by the broker -----------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    @property
    def held_bytes(self) -> int:
        """Of requests that have come in part, or that wait for others."""
        return self._decoder.held_bytes

    @property
    def is_stalled(self) -> bool:
        return not self._may_write.is_set()

    @asynccontextmanager
    async def room(self) -> AsyncIterator[None]:
        """Room for a large answer: waits until the client reads, and until few others are made."""
        async with self._rooms:
            while self.is_stalled:  # again: the first one woken may have filled it
                await self._may_write.wait()
            if not self.is_open:
                raise RefusedError(Code.SYSTEM_ERROR, "the client is gone")
            yield

    def send(self, command: Command) -> None:
        """Send together with other small answers of this turn of the loop: a system call costs as
        much as one of them."""
        if not self.is_open:
            return
        if not self._unsent:
            self._server.soon(self._write)
        frame = encode(command)
        self._unsent.append(frame)
        self._unsent_bytes += len(frame)
        if self._unsent_bytes > TOGETHER_BYTES:
            self._write()  # which may find that the client takes no more

    def tell(self, code: Ask, **fields: str) -> None:
        """A one-way request to the client. One that does not read gets none: it asks again itself,
        and others could make it cost any memory."""
        if not self.is_stalled:
            self.send(Command(code=code, flag=ONE_WAY, fields=fields))

    def stop_reading(self) -> None:
        if self._transport is not None:
            self._transport.pause_reading()

    def close(self) -> None:
        """Close after everything written has been sent."""
        self._write()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # -----------------------------------------------------------------------------------------

    def _write(self) -> None:
        unsent, self._unsent, self._unsent_bytes = self._unsent, [], 0
        if unsent and self._transport is not None and self.is_open:
            self._transport.write(b"".join(unsent))

    @property
    def _may_take(self) -> bool:
        busy = self._in_flight >= self._server.limits.in_flight
        return self.is_open and not (busy or self.is_stalled or self._server.is_stopping)

    def _pace(self) -> None:
        """Continue to read, or leave the data in the client's own buffers."""
        if self._transport is None or not self.is_open:
            return
        if self._may_take:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def _take(self) -> None:
        try:
            while self._may_take and (command := self._decoder.take()) is not None:
                if not command.is_answer:
                    self._serve(command)
        except FrameError as error:
            log.warning("%s: %s; its connection is closed", self.host, error)
            self.abort()
        self._server.held(self)
        self._pace()

    def _serve(self, command: Command) -> None:
        found = self._server.answer(Request(command, self))
        if isinstance(found, Answer):
            self._reply(command, found)
            return
        self._in_flight += 1
        self._server.begin(self._reply_later(command, found))

    async def _reply_later(self, command: Command, coming: Awaitable[Answer]) -> None:
        try:
            self._reply(command, await coming)
        finally:
            self._in_flight -= 1
            self._take()  # requests that waited for this one

    def _reply(self, command: Command, answer: Answer) -> None:
        self._server.count(command.code, answer.code)
        if not command.is_one_way:
            self.send(answer.to(command))


class Server:
    """The listening socket and its connections; `handlers` has one handler for each code."""

    def __init__(
        self,
        handlers: Mapping[int, Handler],
        limits: Limits,
        *,
        on_leave: Callable[[Connection], None],
        on_look: Callable[[], None],
    ) -> None:
        """`on_look` is called every second, `on_leave` with each connection that is gone."""
        self.limits = limits
        self.is_stopping = False
        self.counts: Counter[tuple[str, str]] = Counter()
        self.connections: set[Connection] = set()
        self._handlers = handlers
        self._on_leave = on_leave
        self._on_look = on_look
        self._has_none = asyncio.Event()
        self._has_none.set()
        self._pending_bytes = self._held_bytes = 0
        self._held: dict[Connection, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._listener: asyncio.Server | None = None
        loop = asyncio.get_running_loop()
        self.now, self.soon = loop.time, loop.call_soon

    async def bind(self, host: str, port: int) -> int:
        """Returns the port, which the system chooses for 0; nobody is served yet."""
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(
            lambda: Connection(self), host, port, start_serving=False
        )
        bound: int = self._listener.sockets[0].getsockname()[1]
        return bound

    async def start(self) -> None:
        """Accept connections from now on."""
        if self._listener is not None:
            await self._listener.start_serving()
        self._look()

    async def stop(self, seconds: float) -> None:
        """Accept nothing more, answer the requests in flight, and end all connections."""
        self.is_stopping = True
        if self._listener is not None:
            self._listener.close()
        for connection in self.connections:
            connection.stop_reading()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)
        for task in self._tasks:
            task.cancel()
        for connection in list(self.connections):
            connection.close()
        # Time to send the last answers to clients that read them.
        with suppress(TimeoutError):
            await asyncio.wait_for(self._has_none.wait(), END_SECONDS)
        for connection in list(self.connections):
            connection.abort()

    # -- called by connections ----------------------------------------------------------------

    def take_in(self, connection: Connection) -> bool:
        """Accept a connection if there is room for it."""
        if len(self.connections) >= self.limits.connections or self.is_stopping:
            log.warning("%s: refused, there are %d", connection.host, len(self.connections))
            return False
        self.connections.add(connection)
        self._has_none.clear()
        return True

    def let_go(self, connection: Connection) -> None:
        if connection in self.connections:
            self.connections.discard(connection)
            self._held_bytes -= self._held.pop(connection, 0)
            self._on_leave(connection)
        if not self.connections:
            self._has_none.set()

    def held(self, connection: Connection) -> None:
        """Count the bytes of unfinished requests, which clients may never finish. If there are too
        many, whoever has sent the most is closed."""
        if connection not in self.connections:
            return
        before, now = self._held.get(connection, 0), connection.held_bytes
        self._held[connection] = now
        self._held_bytes += now - before
        if self._held_bytes > self.limits.pending_bytes:
            most = max(self._held, key=self._held.__getitem__)
            size = self._held.pop(most)
            self._held_bytes -= size
            log.warning("%s: closed, %d bytes of it wait for more", most.host, size)
            most.abort()

    def answer(self, request: Request) -> Answer | Awaitable[Answer]:
        """The answer, or an awaitable if it has to wait. Never raises."""
        code = request.command.code
        handler = self._handlers.get(code)
        if handler is None:
            remark = f"request code {code} is not supported"
            return Answer(code=Code.REQUEST_CODE_NOT_SUPPORTED, remark=remark)
        size = request.command.frame_bytes
        if self._pending_bytes + size > self.limits.pending_bytes:
            return Answer(code=Code.SYSTEM_BUSY, remark="too many bytes wait for an answer")
        try:
            found = handler(request)
        except Exception as error:  # noqa: BLE001 - what it was is in the answer, or in the log
            return _refusal(error, code)
        return found if isinstance(found, Answer) else self._answered(found, code, size)

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)  # a task without a reference may be collected
        task.add_done_callback(self._tasks.discard)

    def count(self, asked: int, answered: int) -> None:
        self.counts[_name(Ask, asked), _name(Code, answered)] += 1

    # -----------------------------------------------------------------------------------------

    async def _answered(self, coming: Awaitable[Answer], code: int, size: int) -> Answer:
        self._pending_bytes += size
        try:
            return await coming
        except Exception as error:  # noqa: BLE001 - what it was is in the answer, or in the log
            return _refusal(error, code)
        finally:
            self._pending_bytes -= size

    def _look(self) -> None:
        """End connections that are silent or do not read their answers."""
        if self.is_stopping:
            return
        asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look)
        now, limits = self.now(), self.limits
        for connection in list(self.connections):
            stalls = connection.is_stalled and now - connection.stalled_at > limits.stalled_seconds
            if stalls or now - connection.heard_at > limits.idle_seconds:
                log.info("%s: closed, it %s", connection.host, "stalls" if stalls else "is idle")
                connection.abort()
        self._on_look()


def _refusal(error: Exception, code: int) -> Answer:
    if isinstance(error, RefusedError):
        return Answer(code=error.code, remark=error.reason)
    if isinstance(error, InvalidArgumentError):
        return Answer(code=Code.SYSTEM_ERROR, remark=str(error))
    if isinstance(error, StoreClosedError):
        return Answer(code=Code.SERVICE_NOT_AVAILABLE, remark=str(error))
    if isinstance(error, TieredStoreError):
        log.warning("%s: %s: %s", _name(Ask, code), type(error).__name__, error)
        return Answer(code=Code.SYSTEM_ERROR, remark=f"{type(error).__name__}: {error}")
    log.error("request %s failed", _name(Ask, code), exc_info=error)
    return Answer(code=Code.SYSTEM_ERROR, remark=f"{type(error).__name__}, see the broker's log")


def _name(kind: type[Ask | Code], number: int) -> str:
    """All unknown numbers share one name: a client could send any, and each would be kept."""
    return kind(number).name if number in kind.__members__.values() else "OTHER"


def _host_of(address: Any) -> Host:
    try:
        return Host(ipaddress.ip_address(address[0]).packed, address[1])
    except (IndexError, TypeError, ValueError):
        return Host(b"\x7f\x00\x00\x01", 0)

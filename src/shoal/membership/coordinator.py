"""The coordinator's process: connections, time and the job's record around the pure core.

Covers listening, the handshake, limits on strangers and on slow readers, and carrying out the core's instructions.
Decides nothing about the job itself: that is `core`.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import signal
import socket
import threading
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from shoal.errors import AddressUnavailable, UsageError, WireError
from shoal.events import JobStarted, Record
from shoal.job_config import JobConfig
from shoal.membership.channel import PURPOSE, REFUSAL
from shoal.membership.core import TICK, MembershipCore
from shoal.membership.journal import Journal
from shoal.membership.protocol import (
    Arrived,
    CatchUp,
    Close,
    Closed,
    Discard,
    End,
    Input,
    Instruction,
    Interrupt,
    Note,
    Publish,
    Published,
    PublishFailed,
    Send,
    Tick,
)
from shoal.membership.publisher import Publisher
from shoal.membership.publisher_thread import PublisherThread
from shoal.membership.regrouping import Past
from shoal.values import Address
from shoal.wire import handshake
from shoal.wire.messages import ClientMessage, Happened, body_length, decode_client, encode

BACKLOG = 1024  # connections that may wait to be accepted: all workers of a job start at once
ACCEPT_AT_ONCE = 16  # connections taken in before their handlers run, and may close others
MAX_STRANGERS = 256  # connections that have not joined yet; beyond, the one that has been there longest is closed
STRANGER_SECONDS = 10.0  # for the handshake and the first message together
MAX_UNREAD = 8 * 1024 * 1024  # bytes waiting for a client that does not read
GOODBYE_SECONDS = 1.0  # for what clients are told at the end to get out
LINGER_SECONDS = 0.2  # after that, for clients to close from their side
DISCARD_SECONDS = 5.0  # and for the files of lost checkpoints to be removed


@dataclass(frozen=True)
class CoordinatorSettings:
    listener: socket.socket  # bound and listening; closed by `serve`
    token: str
    config: JobConfig
    run_dir: Path | None  # None: no record is kept
    started: JobStarted  # the record's first event
    publisher: Publisher | None = None  # None: checkpoints are all lost
    after_generation: int = 0  # the first one is the next; above every generation of a job that goes on
    shares: tuple[int, ...] = ()  # recorded ones, by rank; used where the number of workers is the same


def open_listener(address: Address, token: str) -> socket.socket:
    """Listen for the job's clients. Port 0 takes any free port."""
    refuse_without_token(address, token)
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise AddressUnavailable(_cannot_listen(address, error)) from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(where)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise AddressUnavailable(_cannot_listen(address, error)) from None
    return listener


def refuse_without_token(address: Address, token: str) -> None:
    if not token and not address.is_loopback:
        raise UsageError(
            f"listening on {address} without a token would let anybody in; give a token or listen on 127.0.0.1"
        )


def _cannot_listen(address: Address, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"cannot listen on {address}: the port is in use; choose another with --address, or 0 for any free one"
    return f"cannot listen on {address}: {error.strerror or error}; choose another with --address"


def serve(settings: CoordinatorSettings) -> int:
    """Run the job's membership to its end and return the job's exit code."""
    return asyncio.run(_Coordinator(settings).run())


class _Coordinator:
    def __init__(self, settings: CoordinatorSettings) -> None:
        self._settings = settings
        self._journal = Journal(settings.run_dir)
        self._inputs: deque[Input] = deque()
        self._handling = False
        self._clients: dict[int, asyncio.StreamWriter] = {}
        self._strangers: dict[asyncio.Task[None], None] = {}  # in order of arrival
        self._connections: set[asyncio.Task[None]] = set()
        self._count = 0

    async def run(self) -> int:
        self._loop = asyncio.get_running_loop()
        self._over: asyncio.Future[int] = self._loop.create_future()
        past = Past(generation=self._settings.after_generation, shares=self._settings.shares)
        self._core = MembershipCore(self._settings.config, now=self._loop.time(), past=past)
        self._publisher = PublisherThread(self._settings.publisher, self._answered)
        self._write(Note(self._settings.started, ()))
        server = await asyncio.start_server(self._accepted, sock=self._settings.listener, backlog=ACCEPT_AT_ONCE)
        self._settings.listener.listen(BACKLOG)  # asyncio has set it to what it accepts at once
        self._catch_signals()
        try:
            while not self._over.done():
                await asyncio.wait({self._over}, timeout=TICK)
                self._feed(Tick())
            server.close()
            await self._say_goodbye()
            await self._loop.run_in_executor(None, self._publisher.join, DISCARD_SECONDS)
        finally:
            server.close()
            self._journal.close()
        return self._over.result()

    def _catch_signals(self) -> None:
        """A coordinator that is told to stop still ends the job and its record properly."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in (signal.SIGTERM, signal.SIGINT):
            reason = f"the coordinator was stopped by {number.name}"
            self._loop.add_signal_handler(number, self._feed, Interrupt(reason, 128 + number))

    # Connections

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            first = await self._first_message(reader, writer, task)
            if first is not None:
                await self._converse(reader, writer, first)
        except asyncio.CancelledError:
            pass  # evicted as a stranger, or the job is over
        finally:
            self._connections.discard(task)
            writer.close()

    async def _first_message(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, task: asyncio.Task[None]
    ) -> ClientMessage | None:
        """What a stranger has to say once it has proved that it holds the token; None when it is not worth hearing."""
        if len(self._strangers) >= MAX_STRANGERS:
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            oldest.cancel()
        self._strangers[task] = None
        try:
            async with asyncio.timeout(STRANGER_SECONDS):
                if await self._holds_token(reader, writer):
                    return await _read_message(reader)
        except (TimeoutError, OSError, asyncio.IncompleteReadError, WireError):
            pass
        finally:
            self._strangers.pop(task, None)
        return None

    async def _holds_token(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        nonce = handshake.new_nonce()
        writer.write(nonce)
        reply = await reader.readexactly(handshake.REPLY_BYTES)
        its_nonce, proof = reply[: handshake.NONCE_BYTES], reply[handshake.NONCE_BYTES :]
        token = self._settings.token
        if not handshake.is_proof(handshake.connector_proof(token, nonce, PURPOSE), proof):
            writer.write(REFUSAL)
            return False
        writer.write(handshake.listener_proof(token, its_nonce, PURPOSE))
        return True

    async def _converse(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, message: ClientMessage
    ) -> None:
        self._count += 1
        client = self._count
        self._clients[client] = writer
        reason = ""
        try:
            while True:
                self._feed(Arrived(client, message))
                message = await _read_message(reader)
        except WireError as error:
            reason = str(error)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            if self._clients.pop(client, None) is not None:
                self._feed(Closed(client, reason))

    # The core and its instructions

    def _feed(self, happened: Input) -> None:
        """Hand one input to the core. Carrying out instructions may bring the next input, which waits its turn."""
        self._inputs.append(happened)
        if self._handling:
            return
        self._handling = True
        try:
            while self._inputs:
                for instruction in self._core.handle(self._inputs.popleft(), self._loop.time()):
                    self._carry_out(instruction)
            self._journal.flush()
        except Exception as error:  # a mistake of ours must end the coordinator, not leave it half working
            if not self._over.done():
                self._over.set_exception(error)
        finally:
            self._handling = False

    def _answered(self, answer: Published | PublishFailed) -> None:
        """In the publisher's thread."""
        with contextlib.suppress(RuntimeError):  # it took so long that the loop is closed
            self._loop.call_soon_threadsafe(self._feed, answer)

    def _carry_out(self, instruction: Instruction) -> None:
        if isinstance(instruction, Send):
            data = encode(instruction.message)
            for client in instruction.clients:
                self._send(client, data)
        elif isinstance(instruction, Note):
            self._write(instruction)
        elif isinstance(instruction, CatchUp):
            for record in self._journal.recent:
                self._show(instruction.client, record)
        elif isinstance(instruction, Close):
            if (writer := self._clients.pop(instruction.client, None)) is not None:
                writer.close()
        elif isinstance(instruction, Publish | Discard):
            self._publisher.ask(instruction)
        elif isinstance(instruction, End) and not self._over.done():
            self._over.set_result(instruction.exit_code)

    def _send(self, client: int, data: bytes) -> None:
        writer = self._clients.get(client)
        if writer is None or writer.is_closing():
            return
        if writer.transport.get_write_buffer_size() > MAX_UNREAD:
            del self._clients[client]
            writer.transport.abort()
            self._inputs.append(Closed(client, f"it has not read {MAX_UNREAD} bytes"))
            return
        writer.write(data)

    def _write(self, note: Note) -> None:
        record = self._journal.write(Record(time=time.time(), event=note.event))
        for client in note.watchers:
            self._show(client, record)

    def _show(self, client: int, record: Record) -> None:
        """A watcher that reads slowly misses events rather than the job's end; the file has them all."""
        writer = self._clients.get(client)
        if writer is not None and writer.transport.get_write_buffer_size() <= MAX_UNREAD // 2:
            with contextlib.suppress(WireError):  # an event so long that it cannot be passed on
                self._send(client, encode(Happened(time=record.time, event=record.event)))

    async def _say_goodbye(self) -> None:
        """Let what was sent get out and clients close first: closing on unread bytes could destroy what we sent."""
        deadline = self._loop.time() + GOODBYE_SECONDS
        writers = list(self._clients.values())
        for writer in writers:
            if writer.can_write_eof() and not writer.is_closing():
                writer.write_eof()
        while any(writer.transport.get_write_buffer_size() for writer in writers) and self._loop.time() < deadline:
            await asyncio.sleep(0.01)
        if self._connections:
            await asyncio.wait(set(self._connections), timeout=LINGER_SECONDS)
        for task in tuple(self._connections):
            task.cancel()
        if self._connections:
            await asyncio.wait(set(self._connections))
        for writer in writers:
            writer.transport.abort()


async def _read_message(reader: asyncio.StreamReader) -> ClientMessage:
    return decode_client(await reader.readexactly(body_length(await reader.readexactly(4))))

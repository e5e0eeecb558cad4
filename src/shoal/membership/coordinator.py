"""The coordinator's process: connections, time and the job's record around the pure core.

Listens, and carries out the core's instructions once the decisions that they depend on are on disk. Not here: decisions
about the job (`core`), bytes and strangers (`connections`).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import socket
import sys
import threading
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from shoal.errors import AddressUnavailable, UsageError, WireError
from shoal.events import JobStarted, Record, StorageFailed, StorageRestored
from shoal.job_config import JobConfig
from shoal.membership import texts
from shoal.membership.connections import Connections, Hearers
from shoal.membership.core.admission import OWN_EVENTS
from shoal.membership.core.core import TICK, MembershipCore
from shoal.membership.core.decisions import NumberGiven, Remembered
from shoal.membership.core.protocol import (
    Arrived,
    CatchUp,
    Close,
    Closed,
    DiscardCheckpoint,
    End,
    Input,
    Instruction,
    Interrupt,
    JobProgram,
    Noticed,
    Publish,
    Published,
    PublishFailed,
    RecordEvent,
    Send,
    Tick,
    WriteDecision,
)
from shoal.membership.generations.forming import EarlierGenerations
from shoal.membership.publisher import Publisher
from shoal.membership.publisher_thread import PublisherThread
from shoal.membership.record.decision_file import DecisionFile
from shoal.membership.record.event_writer import EventWriter, with_room
from shoal.membership.record.storage import StorageNews
from shoal.membership.record.worker_clocks import RecordClock
from shoal.transport.connection import listening
from shoal.transport.connection.door import interception
from shoal.values import Address
from shoal.wire.messages import Beat, ClientMessage, Happened, Welcome, encode

BACKLOG = 1024  # connections that may wait to be accepted: all workers of a job start at once
DISCARD_SECONDS = 5.0  # at the end of the job, for removing the files of lost checkpoints
DISK_SECONDS = 10.0  # that the end of a job waits for a disk that cannot be written


@dataclass(frozen=True)
class CoordinatorSettings:
    listener: socket.socket  # bound and listening; closed by `serve`
    token: str
    config: JobConfig
    run_dir: Path | None  # None: no record is kept
    started: JobStarted  # the record's first event
    publisher: Publisher | None = None  # None: checkpoints are all lost
    after_generation: int = 0  # generations count on from here: the highest of the job's checkpoints
    shares: tuple[int, ...] = ()  # recorded shares by rank; used where the number of workers is the same
    servers: str = ""  # HOST:PORT of the keeper of the job's parameter servers, for workers
    space: str = ""  # the job's name on those servers
    launcher: int = 0  # id of the launcher's process, which started this one; 0: none
    joins: bool = False  # the script's workers are expected to join


def open_listener(address: Address, token: str) -> socket.socket:
    """Listen for the job's clients. Port 0 takes any free port."""
    refuse_without_token(address, token)
    try:
        return listening.listen(address, BACKLOG)
    except OSError as error:
        raise AddressUnavailable(_cannot_listen(address, error)) from None


def refuse_without_token(address: Address, token: str) -> None:
    if not token and not address.is_loopback:
        raise UsageError(texts.no_token(address))


def _cannot_listen(address: Address, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return texts.port_in_use(address)
    return texts.cannot_listen(address, error.strerror or error)


def serve(settings: CoordinatorSettings) -> int:
    """Run the job's membership to its end and return the job's exit code."""
    return asyncio.run(_Coordinator(settings).run())


class _Coordinator:
    def __init__(self, settings: CoordinatorSettings) -> None:
        self._settings = settings
        self._event_writer = EventWriter(settings.run_dir)
        self._decisions = DecisionFile(settings.run_dir)
        self._inputs: deque[Input] = deque()
        self._handling = False
        self._todo: deque[Instruction] = deque()  # instructions whose decisions are not on disk yet
        self._is_scheduled = False  # they will be carried out at the end of this round of the event loop
        self._is_blocked = False  # decisions wait for a disk that cannot be written
        self._end_due: float | None = None  # while blocked: until when the end of the job waits
        self._storage = StorageNews()
        self._clock = RecordClock(self._event_writer.last_time)
        hearers = Hearers(self._arrived, self._closed, self._intercepted)
        self._connections = Connections(settings.listener, settings.token, hearers)

    async def run(self) -> int:
        self._loop = asyncio.get_running_loop()
        self._over: asyncio.Future[int] = self._loop.create_future()
        try:
            self._core = self._start_core()
            self._publisher = PublisherThread(self._settings.publisher, self._answered)
            self._connections.open()
            try:
                self._catch_signals()
                await self._serve()
                self._connections.shut()
                await self._connections.say_goodbye()
                await self._loop.run_in_executor(None, self._publisher.join, DISCARD_SECONDS)
            finally:
                self._connections.shut()
        finally:
            self._event_writer.close()
            self._decisions.close()
        return self._over.result()

    def _start_core(self) -> MembershipCore:
        """A job that has begun goes on with the decisions of its last coordinator."""
        settings, started = self._settings, self._settings.started
        remembered = self._decisions.read()
        if remembered == Remembered():
            self._write(RecordEvent(started, ()))
            self._decisions.add(NumberGiven(worker=settings.config.workers - 1))
            self._decisions.flush()
            self._event_writer.flush()
        return MembershipCore(
            settings.config,
            now=self._loop.time(),
            past=EarlierGenerations(generation=settings.after_generation, shares=settings.shares),
            remembered=remembered,
            program=JobProgram(
                started.script,
                started.arguments,
                settings.servers,
                settings.space,
                digest=started.digest,
                joins=settings.joins,
            ),
        )

    async def _serve(self) -> None:
        while not self._over.done():
            await asyncio.wait({self._over}, timeout=TICK)
            self._feed(Tick())
            self._event_writer.flush()  # retry lines that could not be written before
            if self._is_blocked:
                self._carry_out_all()
            self._look_at_storage()

    def _catch_signals(self) -> None:
        """A coordinator that is told to stop still ends the job and its record properly."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._interrupted, number)

    def _interrupted(self, number: signal.Signals) -> None:
        """Handle a signal. The kernel also sends SIGTERM when the launcher has died."""
        launcher = self._settings.launcher
        if launcher and os.getppid() != launcher:
            self._feed(Interrupt("the launcher is gone", is_final=True))
        else:
            self._feed(Interrupt(f"the coordinator was stopped by {number.name}", 128 + number))

    # The core and its instructions

    def _arrived(self, client: int, message: ClientMessage) -> None:
        self._feed(Arrived(client, message))

    def _closed(self, client: int, reason: str) -> None:
        self._feed(Closed(client, reason))

    def _intercepted(self, source: str) -> None:
        self._feed(Noticed(interception("the coordinator", source)))

    def _answered(self, answer: Published | PublishFailed) -> None:
        """Called in the publisher's thread."""
        with contextlib.suppress(RuntimeError):  # the answer took so long that the event loop is closed
            self._loop.call_soon_threadsafe(self._feed, answer)

    def _feed(self, happened: Input) -> None:
        """Hand one input to the core. Carrying out instructions may bring the next input, which waits its turn."""
        self._inputs.append(happened)
        if self._handling:
            return
        self._handling = True
        try:
            while self._inputs:
                self._write_down(self._core.handle(self._inputs.popleft(), self._loop.time()))
        except Exception as error:
            self._fail(error)
        finally:
            self._handling = False

    def _write_down(self, instructions: tuple[Instruction, ...]) -> None:
        """Queue instructions. Those of all inputs that come in together need only one write to disk."""
        for instruction in instructions:
            if isinstance(instruction, WriteDecision):
                self._decisions.add(instruction.decision)
            elif not self._is_blocked or not _rests_on_nothing(instruction):
                self._todo.append(instruction)
            else:
                self._carry_out(instruction)
                if isinstance(instruction, CatchUp):  # again later, for events that are held back now
                    self._todo.append(instruction)
        if self._todo and not self._is_scheduled and not self._is_blocked:
            self._is_scheduled = True
            self._loop.call_soon(self._carry_out_all)

    def _carry_out_all(self) -> None:
        """Carry out instructions in order, once all decisions are on disk: nobody hears of what could be forgotten."""
        self._is_scheduled = False
        try:
            if not self._decisions.flush() and not self._gives_up():
                return  # the next tick tries again
            # Carrying these out may lose a client and so cause new decisions, which are not on disk yet: those wait.
            ready, self._todo = self._todo, deque()
            self._look_at_storage()
            self._is_blocked = False
            for instruction in ready:
                self._carry_out(instruction)
            self._event_writer.flush()
        except Exception as error:  # as in `_feed`
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """A bug must end the coordinator, not leave it half working."""
        if not self._over.done():
            self._over.set_exception(error)

    def _gives_up(self) -> bool:
        """Decisions cannot be written: announce that. Whether a job that is to end has waited for the disk enough."""
        self._is_blocked = True
        self._look_at_storage()
        now = self._loop.time()
        if self._end_due is None and any(isinstance(instruction, End) for instruction in self._todo):
            self._end_due = now + DISK_SECONDS
        return self._end_due is not None and now >= self._end_due

    def _look_at_storage(self) -> None:
        """Announce which files cannot be written, and which can be written again."""
        unwritten = self._decisions.trouble
        troubles = [*([] if unwritten is None else [unwritten]), *self._event_writer.troubles]
        if not troubles and self._storage.is_quiet:
            return
        for event in self._storage.look([with_room(trouble) for trouble in troubles], self._loop.time()):
            sys.stderr.write(f"shoal: {event.reason}\n")
            self._feed(Noticed(event))

    def _carry_out(self, instruction: Instruction) -> None:
        if isinstance(instruction, Send):
            self._event_writer.flush()  # nobody hears of anything that is not in the record
            data = encode(instruction.message)
            for client in instruction.clients:
                self._connections.send(client, data)
        elif isinstance(instruction, RecordEvent):
            self._write(instruction)
        elif isinstance(instruction, CatchUp):
            for record in self._event_writer.recent:
                self._show(instruction.client, record)
        elif isinstance(instruction, Close):
            self._connections.close(instruction.client)
        elif isinstance(instruction, Publish | DiscardCheckpoint):
            self._publisher.ask(instruction)
        elif isinstance(instruction, End) and not self._over.done():
            self._over.set_result(instruction.exit_code)

    def _write(self, happened: RecordEvent) -> None:
        for record in self._event_writer.write(Record(time=self._clock.next(), event=happened.event)):
            for client in happened.watchers:
                self._show(client, record)

    def _show(self, client: int, record: Record) -> None:
        """A watcher that reads slowly misses events, but not the job's end; the file has all events."""
        if self._connections.reads_well(client):
            with contextlib.suppress(WireError):  # the event is too long for a message
                self._connections.send(client, encode(Happened(time=record.time, event=record.event)))


def _rests_on_nothing(instruction: Instruction) -> bool:
    """Whether an instruction may be carried out before earlier decisions are on disk, since it reveals none of them."""
    match instruction:
        case Send(message=Beat()) | Send(message=Welcome(generation=None)) | CatchUp():
            return True
        case RecordEvent(event=event):
            return isinstance(event, StorageFailed | StorageRestored) or not isinstance(event, OWN_EVENTS)
        case _:
            return False

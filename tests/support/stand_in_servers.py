"""A keeper and servers in one thread, for tests of a worker's client: real messages, a real ledger, plain SGD.

All servers share one ledger and one copy of the values; what a real server would only notice, tests order: servers that
die or come, connections that break, memory that changes under a reader, a server that does not know the newest map yet.
"""

from __future__ import annotations

import os
import socket
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
import torch

from shoal.parameters.blocks.block_state import BlockState, pack, unpack
from shoal.parameters.blocks.byte_views import bytes_of, tensor_over, torch_type
from shoal.parameters.blocks.part_layout import PartLayout
from shoal.parameters.blocks.part_memory import PartMemory
from shoal.parameters.blocks.placement import Placement, keys_digest
from shoal.parameters.blocks.table_blocks import blocks_of
from shoal.parameters.connections.connection import Connection
from shoal.parameters.connections.purposes import job_purpose, keeper_job_purpose
from shoal.parameters.connections.switchboard import Switchboard
from shoal.parameters.ledger.effects import Drop, MayRead, Replace, Reply, Update
from shoal.parameters.ledger.ledger import Ledger
from shoal.transport.connection.handshake import Key
from shoal.transport.memory.arena import Offer, PeerArena
from shoal.values import Address, Server, ServerMap
from shoal.wire import parameter_messages as wire
from shoal.wire.keeper_messages import GroupNews, WatchGroup
from shoal.wire.ledger_entries import AnyEntry, Begin
from shoal.wire.tables import PushId, TableSpec

JOB = "stand-in"
TOKEN = "a token for stand-ins"


@dataclass
class StandInServer:
    """One of the group."""

    server: Server
    listener: socket.socket
    layout: PartLayout | None = None
    memory: PartMemory | None = None
    staged: dict[PushId, dict[int, object]] = field(default_factory=dict)  # by block: gradient or BlockState
    in_arena: set[PushId] = field(default_factory=set)
    links: dict[Connection, Worker] = field(default_factory=dict)
    is_behind: bool = False  # it answers as if it did not know the newest map


@dataclass
class Worker:
    """A worker's connection to a server."""

    number: int
    arena: PeerArena | None


class StandIns:
    def __init__(self, count: int, replicas: int = 1) -> None:
        self.ledger = Ledger()
        self.values: dict[int, torch.Tensor] = {}  # by number of the tensor, flat
        self.table: TableSpec | None = None
        self.heard: list[wire.AnyNote] = []  # of servers, in order
        self.answers_pulls = True
        self.is_silent = False  # says nothing more, as one that is stopped
        self.says_released = True  # False: these words are lost
        self.on_part: Callable[[StandInServer, wire.Part], None] = lambda *_: None
        self.replicas = replicas
        self.servers: dict[int, StandInServer] = {}
        self._watchers: list[Connection] = []
        self._waiting: list[tuple[StandInServer, Connection, wire.Pull]] = []
        self._board = Switchboard()
        self._tasks: deque[Callable[[], None]] = deque()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC)
        self._board.watch(self._wake, lambda: os.eventfd_read(self._wake))
        self._keeper = _listen()
        self._board.watch(self._keeper, self._accept_watcher)
        self._is_ending = False
        for number in range(count):
            self._add(number)
        numbers = tuple(self.servers)
        self.map = ServerMap(1, tuple(each.server for each in self.servers.values()), numbers, numbers, replicas)
        self._apply(Begin(view=1))
        self._thread = threading.Thread(target=self._run, name="stand-in-servers")
        self._thread.start()

    @property
    def keeper(self) -> Address:
        return Address("127.0.0.1", self._keeper.getsockname()[1])

    # For tests, from their thread

    def do(self, task: Callable[[], None]) -> None:
        """In the servers' thread; returns when it is done."""
        done = threading.Event()

        def run() -> None:
            task()
            done.set()

        self._tasks.append(run)
        os.eventfd_write(self._wake, 1)
        assert done.wait(20)

    def kill(self, number: int, *, add: int | None = None) -> None:
        """A server dies, and in the same map another one may come."""
        self.do(lambda: self._kill(number, add))

    def break_connections(self) -> None:
        """Of all servers, which live on."""
        self.do(lambda: [connection.end() for each in self.servers.values() for connection in each.links])

    def close(self) -> None:
        self._is_ending = True
        os.eventfd_write(self._wake, 1)
        self._thread.join()
        self._board.close()
        for each in self.servers.values():
            self._close(each)
        self._keeper.close()
        os.close(self._wake)

    # The servers' thread

    def _run(self) -> None:
        while not self._is_ending:
            while self._tasks:
                self._tasks.popleft()()
            self._board.turn(None)

    def _add(self, number: int) -> None:
        listener = _listen()
        address = Address("127.0.0.1", listener.getsockname()[1])
        self.servers[number] = StandInServer(Server(number, address, "here", os.getpid()), listener)
        self._board.watch(listener, lambda: self._accept(self.servers[number]))

    def _close(self, each: StandInServer) -> None:
        self._board.unwatch(each.listener)
        each.listener.close()
        for connection, worker in each.links.items():
            connection.close()
            if worker.arena is not None:
                worker.arena.close()
        if each.memory is not None:
            each.memory.close()

    def _kill(self, number: int, add: int | None) -> None:
        self._close(self.servers.pop(number))
        if add is not None:
            self._add(add)
        numbers = tuple(self.servers)
        living = tuple(each.server for each in self.servers.values())
        self.map = ServerMap(self.map.version + 1, living, numbers, numbers, self.replicas, f"server {number} is gone")
        for each in self.servers.values():
            each.staged.clear()
            each.layout = None
        self._apply(Begin(view=self.map.version))
        for watcher in self._watchers:
            watcher.send(GroupNews(map=self.map))
        waiting, self._waiting = self._waiting, []
        for each, connection, note in waiting:
            self._pull(each, connection, note)

    def _accept_watcher(self) -> None:
        endpoint, _ = self._keeper.accept()
        self._board.add(Connection.accepted(endpoint, lambda: [Key(keeper_job_purpose(JOB), TOKEN)], self))

    def _accept(self, each: StandInServer) -> None:
        endpoint, _ = each.listener.accept()
        connection = Connection.accepted(endpoint, lambda: [Key(job_purpose(JOB), TOKEN)], self)
        connection.label = each
        self._board.add(connection)

    def proved(self, connection: Connection) -> None:
        pass

    def room(self, connection: Connection, note: wire.AnyNote, size: int) -> memoryview:
        return bytes_of(torch.empty(size, dtype=torch.uint8))

    def closed(self, connection: Connection, reason: str) -> None:
        if isinstance(connection.label, StandInServer):
            connection.label.links.pop(connection, None)
        elif connection in self._watchers:
            self._watchers.remove(connection)

    def arrived(self, connection: Connection, note: wire.AnyNote, payload: memoryview | None) -> None:
        each = connection.label
        if isinstance(each, StandInServer):
            self.heard.append(note)
            if not self.is_silent:
                self._heard(each, connection, note, payload)
        elif isinstance(note, WatchGroup):
            self._watchers.append(connection)
            connection.send(GroupNews(map=self.map))

    def _heard(
        self, each: StandInServer, connection: Connection, note: wire.AnyNote, payload: memoryview | None
    ) -> None:
        if isinstance(note, wire.ServerHello):
            arena = PeerArena.open(msgspec.msgpack.decode(note.arena, type=Offer)) if note.arena else None
            each.links[connection] = Worker(note.worker, arena)
            connection.send(
                wire.ServerWelcome(server=each.server.number, view=self.map.version, sees_arena=arena is not None)
            )
        elif isinstance(note, wire.Define):
            if self.table is not None and self.table.digest != note.table.digest:
                connection.send(wire.Refusal(kind="table", reason="another table", request=note.request))
                return
            self.table = note.table
            has_values, origin = self.ledger.has_values, self.ledger.origin
            connection.send(wire.Defined(request=note.request, has_values=has_values, origin=origin))
        elif isinstance(note, wire.Echo):
            connection.send(note)
        elif isinstance(note, wire.KeyList):
            assert note.digest == keys_digest(self._table.digest, note.blocks)
        elif isinstance(note, wire.Stage):
            self._stage(each, connection, note, payload)
        elif isinstance(note, wire.StageEnd):
            self._end_stage(each, connection, note)
        elif isinstance(note, wire.Discard):
            each.staged.pop(note.push, None)
        elif isinstance(note, wire.Propose):
            self._propose(each, connection, note)
        elif isinstance(note, wire.Pull):
            self._pull(each, connection, note)

    @property
    def _table(self) -> TableSpec:
        assert self.table is not None
        return self.table

    def _is_current(self, each: StandInServer, view: int) -> bool:
        if view != self.map.version or each.is_behind:
            return False
        if each.layout is None:
            each.layout = PartLayout(self._table, Placement(self._table, self.map).keys(each.server.number))
            each.memory = PartMemory(each.layout, is_shared=True)
            self._refresh(each)
        return True

    def _moved(self, each: StandInServer, connection: Connection, request: int) -> None:
        old = msgspec.structs.replace(self.map, version=self.map.version - 1) if each.is_behind else self.map
        connection.send(wire.Moved(request=request, map=old))

    def _stage(self, each: StandInServer, connection: Connection, note: wire.Stage, payload: memoryview | None) -> None:
        if not self._is_current(each, note.view):
            return
        assert each.layout is not None
        numbers = each.layout.blocks[note.first : note.last]
        assert note.keys == keys_digest(self._table.digest, each.layout.blocks)
        if note.is_state:
            states = unpack(self._table, numbers, note.state, tensor_over(payload or b""))
            each.staged.setdefault(note.push, {}).update(zip(numbers, states, strict=True))
            return
        start, stop = each.layout.offset(note.first), each.layout.offset(note.last)
        if note.place >= 0:
            arena = each.links[connection].arena
            assert arena is not None
            data = tensor_over(arena.memory[note.place : note.place + stop - start])
            each.in_arena.add(note.push)
        else:
            data = tensor_over(payload or b"")
        for index, number in enumerate(numbers, note.first):
            part = data[each.layout.offset(index) - start : each.layout.offset(index + 1) - start]
            each.staged.setdefault(note.push, {})[number] = part.view(torch_type(blocks_of(self._table)[number].dtype))

    def _end_stage(self, each: StandInServer, connection: Connection, note: wire.StageEnd) -> None:
        if not note.request:
            if note.push not in each.staged:
                connection.send(wire.PushReleased(push=note.push))
            return
        if not self._is_current(each, note.view):
            self._moved(each, connection, note.request)
            return
        assert each.layout is not None
        if note.push in each.staged:
            assert set(each.staged[note.push]) == set(each.layout.blocks), "staged in part"
        else:
            connection.send(wire.PushReleased(push=note.push))
        connection.send(wire.StageDone(request=note.request, push=note.push, applied=self.ledger.number))

    def _propose(self, each: StandInServer, connection: Connection, note: wire.Propose) -> None:
        if each.server != self.map.home or note.view != self.map.version or each.is_behind:
            assert not isinstance(note.entry, Begin)
            self._moved(each, connection, note.entry.request)
            return
        entry = note.entry
        assert not isinstance(entry, Begin)
        if self.ledger.has_seen(entry.worker, entry.request):
            answer = self.ledger.answer_to(entry.worker, entry.request)
            if answer is not None:
                connection.send(wire.Answered(answer=answer))
            return
        self._apply(entry)

    def _apply(self, entry: AnyEntry) -> None:
        for effect in self.ledger.apply(self.ledger.number + 1, entry):
            if isinstance(effect, Reply):
                self._answer(effect)
            elif isinstance(effect, Update):
                self._update(effect)
            elif isinstance(effect, Replace):
                self._replace(effect)
            elif isinstance(effect, Drop):
                for push in effect.pushes:
                    self._release(push)
        self._look()

    def _answer(self, reply: Reply) -> None:
        for connection, worker in self.servers[self.map.home.number].links.items():
            if worker.number == reply.worker:
                connection.send(wire.Answered(answer=reply.answer))

    def _staged(self, push: PushId) -> dict[int, object]:
        found: dict[int, object] = {}
        for each in self.servers.values():
            for number, gradient in each.staged.get(push, {}).items():
                if number in found and isinstance(gradient, torch.Tensor):
                    assert torch.equal(found[number], gradient), "replicas got different gradients"
                found[number] = gradient
        assert len(found) == len(blocks_of(self._table)), "a push was committed that is not staged everywhere"
        return found

    def _update(self, update: Update) -> None:
        blocks = blocks_of(self._table)
        for push, scale in zip(update.pushes, update.scales, strict=True):
            for number, gradient in self._staged(push).items():
                block = blocks[number]
                assert isinstance(gradient, torch.Tensor)
                rate = float(update.groups(block.optimizer)[block.group]["lr"])  # type: ignore[arg-type]  # a number
                part = self.values[block.tensor][block.start : block.stop]
                part -= rate * update.lr_factor * scale * gradient
        self._changed()
        for push in update.pushes:
            self._release(push)

    def _replace(self, replace: Replace) -> None:
        blocks = blocks_of(self._table)
        for number, state in self._staged(replace.push).items():
            assert isinstance(state, BlockState)
            block = blocks[number]
            if block.tensor not in self.values:
                count = max(other.stop for other in blocks if other.tensor == block.tensor)
                self.values[block.tensor] = torch.empty(count, dtype=torch_type(block.dtype))
            self.values[block.tensor][block.start : block.stop] = state.values
        self._changed()
        self._release(replace.push)

    def _changed(self) -> None:
        for each in self.servers.values():
            self._refresh(each)

    def _refresh(self, each: StandInServer) -> None:
        """A server's shared memory gets the present values."""
        if each.layout is None or each.memory is None or not self.values:
            return
        for unit in range(len(each.layout.units)):
            each.memory.break_seal(unit)
        each.memory.tensor.copy_(tensor_over(self._bytes(each, 0, len(each.layout.blocks))))
        for unit in range(len(each.layout.units)):
            each.memory.seal(unit)

    def _release(self, push: PushId) -> None:
        for each in self.servers.values():
            each.staged.pop(push, None)
            if push in each.in_arena:
                each.in_arena.remove(push)
                for connection, worker in each.links.items():
                    if worker.number == push.worker and self.says_released:
                        connection.send(wire.PushReleased(push=push))

    def _bytes(self, each: StandInServer, first: int, last: int) -> bytes:
        assert each.layout is not None
        blocks = [blocks_of(self._table)[number] for number in each.layout.blocks[first:last]]
        return b"".join(
            bytes(bytes_of(self.values[block.tensor][block.start : block.stop].clone())) for block in blocks
        )

    def _look(self) -> None:
        waiting, self._waiting = self._waiting, []
        for each, connection, note in waiting:
            self._pull(each, connection, note)

    def _pull(self, each: StandInServer, connection: Connection, note: wire.Pull) -> None:
        if not self._is_current(each, note.view):
            self._moved(each, connection, note.request)
            return
        reading = self.ledger.may_read(each.links[connection].number, note.meetings)
        if (
            not self.answers_pulls
            or note.at_least > self.ledger.number
            or (note.is_bounded and reading is MayRead.WAIT)
        ):
            self._waiting.append((each, connection, note))
        elif note.is_bounded and reading is MayRead.MEET:
            meetings, calling = self.ledger.meetings, self.ledger.calling
            connection.send(wire.Held(request=note.request, meetings=meetings, calling=calling))
        else:
            self._send_part(each, connection, note)

    def _send_part(self, each: StandInServer, connection: Connection, note: wire.Pull) -> None:
        assert each.layout is not None and each.memory is not None and each.memory.offer is not None
        part = wire.Part(
            request=note.request,
            first=note.first,
            last=note.last,
            applied=self.ledger.number,
            updates=self.ledger.updates,
        )
        numbers = each.layout.blocks[note.first : note.last]
        if note.with_state:
            blocks = [blocks_of(self._table)[number] for number in numbers]
            states = [BlockState(self.values[block.tensor][block.start : block.stop]) for block in blocks]
            described, data = pack(self._table, numbers, states)
            connection.send(msgspec.structs.replace(part, state=described), data)
        elif note.by_value:
            connection.send(part, self._bytes(each, note.first, note.last))
        else:
            unit = each.layout.unit_of(note.first)
            part = msgspec.structs.replace(
                part,
                place=each.memory.place(each.layout.offset(note.first)),
                seal=each.memory.seal_place(unit),
                arena=msgspec.msgpack.encode(each.memory.offer),
            )
            self.on_part(each, part)
            connection.send(part)


def _listen() -> socket.socket:
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    return listener

"""Server groups for tests: a keeper in this process, and servers as threads of it or as processes of their own.

A server that is a thread dies by raising at one of its crash points: its sockets close, as when a process is killed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch

from shoal.parameters.blocks.table_blocks import block_bytes_for, table_bytes
from shoal.parameters.client.parameter_client import ClientConfig, EnrolTerms, ParameterClient
from shoal.parameters.connections.connection import Connection
from shoal.parameters.connections.purposes import job_purpose
from shoal.parameters.connections.switchboard import Switchboard
from shoal.parameters.keeper.group_events import GroupEvent, MapMade
from shoal.parameters.keeper.keeper import Keeper, KeeperConfig
from shoal.parameters.keeper.space_terms import SpaceTerms
from shoal.parameters.server.server import ServerConfig, ServerLoop
from shoal.training.lean_torch import spare_compiler
from shoal.transport.connection.handshake import Key
from shoal.values import Address
from shoal.wire.keeper_messages import ServerFigures
from shoal.wire.note import Note
from shoal.wire.parameter_messages import AnyNote
from shoal.wire.tables import PushId, PushTerms, RuleSpec, TableSpec, TensorSpec

TOKEN = "of the group"
JOB_KEY = "of the job"
JOB = "job"
LR = 0.5
PATIENCE = 60.0  # seconds until a test gives up

# As servers' own processes do: else the first server that makes an optimizer imports torch's compiler, which takes 6 s
# on a busy machine and has taken 30, and its workers give it up.
spare_compiler()


class Died(BaseException):
    """A server's end, in the midst of its work."""


class Group:
    """Servers are threads, numbered from 0."""

    def __init__(self, servers: int, replicas: int = 1, *, quota: int = 0) -> None:
        self.events: list[GroupEvent] = []
        config = KeeperConfig(
            listen=Address("127.0.0.1", 0),
            token=TOKEN,
            expected=servers,
            replicas=replicas,
            spaces=(SpaceTerms(job=JOB, key=JOB_KEY, quota=quota),),
            silence_limit=10.0,  # a busy machine is no death
        )
        self.keeper = Keeper(config, self.events.append)
        self.keeper.start()
        self.servers: dict[int, ServerLoop] = {}
        self.failures: dict[int, BaseException] = {}
        self._threads: dict[int, threading.Thread] = {}
        self._points: dict[int, Callable[[str], None]] = {}
        self._dying: set[int] = set()
        self._deciding = threading.Lock()  # who dies
        self._clients: list[ParameterClient] = []

    def start(self, number: int, *, memory: int = 0) -> ServerLoop:
        config = ServerConfig(
            keeper=self.keeper.address,
            token=TOKEN,
            number=number,
            memory=memory,
            crash_at=partial(self._pass, number),
        )
        server = self.servers[number] = ServerLoop(config)
        thread = self._threads[number] = threading.Thread(target=self._run, args=(number, server))
        thread.start()
        return server

    def crash(self, number: int, point: str, passing: int = 1) -> None:
        """Let the server die when it passes this point."""
        passed: Counter[str] = Counter()

        def crash_at(here: str) -> None:
            passed[here] += 1
            with self._deciding:
                if here == point and passed[here] == passing and self._points.get(number) is crash_at:
                    self._dying.add(number)
                    raise Died

        self.at_points(number, crash_at)

    def at_points(self, number: int, call: Callable[[str], None]) -> None:
        """Have this called in the server's thread at each of its points."""
        self._points[number] = call

    def spare(self, number: int) -> bool:
        """Do not let it die after all. False: it does, or has."""
        with self._deciding:
            self._points.pop(number, None)
            return number not in self._dying

    def _pass(self, number: int, point: str) -> None:
        call = self._points.get(number)  # which others may take away meanwhile
        if call is not None:
            call(point)

    def client(
        self, worker: int = 0, *, shares_memory: bool = True, job: str = JOB, key: str = JOB_KEY
    ) -> ParameterClient:
        config = ClientConfig(keeper=self.keeper.address, key=key, job=job, worker=worker, shares_memory=shares_memory)
        made = ParameterClient(config)
        self._clients.append(made)
        return made

    def cut(self, one: int, other: int) -> None:
        """End the connection between two servers."""
        peer = self.servers[one]._peers._peers[other]
        assert peer.connection is not None
        peer.connection.endpoint.shutdown(socket.SHUT_RDWR)

    def has_died(self, number: int) -> bool:
        return not self._threads[number].is_alive()

    def is_settled(self) -> bool:
        made = self.keeper.status().map
        return made is not None and made.is_settled

    def holders(self) -> tuple[int, ...]:
        made = self.keeper.status().map
        assert made is not None
        return made.before

    def home(self) -> int:
        made = self.keeper.status().map
        assert made is not None
        return made.home.number

    def figures(self) -> dict[int, ServerFigures]:
        return dict(self.keeper.status().figures)

    def staged(self, number: int) -> tuple[PushId, ...]:
        """Pushes that are staged on a server."""
        holding = self.servers[number]._spaces[JOB].state.holding
        return () if holding is None else holding.staging.all()

    def maps(self) -> int:
        return sum(isinstance(event, MapMade) for event in tuple(self.events))

    def close(self) -> None:
        for client in self._clients:
            client.close()
        for number, server in self.servers.items():
            if self._threads[number].is_alive():
                server.stop()
            self._threads[number].join(PATIENCE)
            assert not self._threads[number].is_alive(), f"server {number} does not end"
        self.keeper.close()
        assert not self.failures, self.failures

    def _run(self, number: int, server: ServerLoop) -> None:
        try:
            server.run()
        except Died:
            pass
        except BaseException as error:
            self.failures[number] = error


@contextlib.contextmanager
def group_of(servers: int, replicas: int = 1, *, quota: int = 0, memory: int = 0, expected: int = 0) -> Iterator[Group]:
    """`expected`: servers that the first map waits for, where the test starts them itself."""
    group = Group(expected or servers, replicas, quota=quota)
    try:
        for number in range(servers):
            group.start(number, memory=memory)
        yield group
    finally:
        group.close()


def wait_until(condition: Callable[[], bool], what: str) -> None:
    limit = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < limit, f"in vain: {what}"
        time.sleep(0.005)


def table_for(rule: str = "SGD", sizes: tuple[int, ...] = (5000, 300, 20_000), **values: float) -> TableSpec:
    tensors = tuple(TensorSpec(name=f"t{number}", shape=(size,), dtype="float32") for number, size in enumerate(sizes))
    rules = (RuleSpec(name=rule, groups=({"lr": LR, **values},)),)
    return TableSpec(kind="dense", tensors=tensors, rules=rules, block_bytes=block_bytes_for(table_bytes(tensors)))


def values_of(table: TableSpec, seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {spec.name: torch.randn(spec.shape, generator=generator) for spec in table.tensors}


def terms_of(table: TableSpec, **named: object) -> PushTerms:
    return PushTerms(groups=tuple(rule.groups for rule in table.rules), **named)  # type: ignore[arg-type]  terms of several types


def begin(group: Group, table: TableSpec, mode: str = "asynchronous", **named: object) -> ParameterClient:
    """Worker 0 of a job of its own, with first values of seed 0."""
    client = group.client(**named)  # type: ignore[arg-type]  settings of several types
    assert not client.define(table)
    client.enrol(EnrolTerms(1, (0,), mode, scaling="none"))
    client.assign(values_of(table, 0), None, 0)
    return client


def pulled(client: ParameterClient, table: TableSpec, at_least: int) -> dict[str, torch.Tensor]:
    found = {spec.name: torch.empty(spec.shape) for spec in table.tensors}
    client.pull(at_least, tuple(found)).wait_all(found)
    return found


class _Ear:
    """Keeps what comes on one connection."""

    def __init__(self) -> None:
        self.notes: list[AnyNote] = []
        self.is_closed = False

    def proved(self, connection: Connection) -> None: ...

    def room(self, connection: Connection, note: AnyNote, size: int) -> memoryview | None:
        return memoryview(bytearray(size))

    def arrived(self, connection: Connection, note: AnyNote, payload: memoryview | None) -> None:
        self.notes.append(note)

    def closed(self, connection: Connection, reason: str) -> None:
        self.is_closed = True


def raw(group: Group, *notes: Note) -> AnyNote:
    """What server 0 answers last to these notes, to each of which it has an answer."""
    wait_until(lambda: JOB in group.servers[0]._spaces, "it has heard of the job")
    ear, board = _Ear(), Switchboard()
    connection = Connection.connecting(group.servers[0].address, Key(job_purpose(JOB), JOB_KEY), ear)
    board.add(connection)
    with contextlib.closing(board):
        for number, note in enumerate(notes, start=1):
            connection.send(note)
            limit = time.monotonic() + PATIENCE
            while len(ear.notes) < number and not ear.is_closed:
                assert time.monotonic() < limit, f"no answer to {note}"
                board.turn(0.05)
    return ear.notes[-1]


class ServerProcess:
    """`shoal server` as a process."""

    def __init__(self, keeper: Address, token_file: Path, number: int, *options: str) -> None:
        command = [sys.executable, "-m", "shoal", "server", "--keeper", str(keeper), "--token-file", str(token_file)]
        self.process = subprocess.Popen(
            [*command, "--number", str(number), *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def end(self) -> tuple[int, str]:
        """Exit code and output after SIGTERM."""
        self.process.terminate()
        output, _ = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, output.decode()

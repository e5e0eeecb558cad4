"""Peers of a worker in a job: a coordinator that says who is in, and a TCP mesh for each generation."""

from __future__ import annotations

import os
import socket
import threading
from dataclasses import dataclass
from pathlib import Path

from shoal.codecs.registry import codec_by_name
from shoal.collectives.threaded_group import ThreadedGroup
from shoal.environment import WorkerEnvironment
from shoal.errors import ExchangeFailed, Refused, ShoalError
from shoal.events import AnyEvent
from shoal.membership.client import CoordinatorClient
from shoal.strategies.peers import Breakage, JobOver, Peers, Traffic
from shoal.transport.tcp import PeerListener, connect_mesh
from shoal.values import Address, Generation
from shoal.wire.messages import PROTOCOL_VERSION, Join, PartFailed, PartWritten

CONNECT_SECONDS = 30.0  # for all peers of a generation to connect
COORDINATOR_SECONDS = 300.0  # for the coordinator to answer; it may have a slow store to look at first


@dataclass(frozen=True)
class _Past:
    """Totals of generations that are over."""

    bytes_sent: int = 0
    idle_seconds: float = 0.0


class ClusterPeers(Peers):
    def __init__(self, environment: WorkerEnvironment) -> None:
        self.worker = environment.worker
        self._token = read_token(Path(environment.token_file))
        self._listener = PeerListener(local_host(environment.coordinator), self._token)
        self._past = _Past()
        self._lock = threading.Lock()
        self._current: ThreadedGroup | None = None
        self._told_to_stop: str | None = None  # this process was, by a signal
        self._connecting = 0  # number of the newest generation that this worker has tried to connect in
        try:
            self.client = CoordinatorClient.connect(
                environment.coordinator,
                self._token,
                Join(
                    version=PROTOCOL_VERSION,
                    worker=environment.worker,
                    host=socket.gethostname(),
                    process=os.getpid(),
                    address=self._listener.address,
                ),
                timeout=COORDINATOR_SECONDS,
            )
        except ShoalError:
            self._listener.close()
            raise
        self.client.on_interrupt = self.abandon

    def form(self) -> None:
        """Wait for the first generation and connect to its members."""
        self._enter(self._next_generation(after=0), step=0)

    def regroup(self, breakage: Breakage) -> None:
        suspect = None if breakage.peer is None else self.generation.members[breakage.peer].worker
        self.abandon(breakage.reason)
        self._retire()
        self.client.exchange_broken(
            generation=self.generation.number,
            step=breakage.step,
            operation=breakage.operation,
            peer=suspect,
            reason=breakage.reason,
            at_end=breakage.at_end,
        )
        self._enter(self._next_generation(after=self.generation.number), step=breakage.step)

    def _next_generation(self, after: int) -> Generation:
        try:
            return self.client.wait_for_generation(after=after)
        except ShoalError as error:
            raise JobOver(error) from None

    def _enter(self, generation: Generation, *, step: int) -> None:
        """Connect to everybody. Whoever cannot be reached breaks this generation too, and the next one is awaited."""
        while True:
            self.generation = generation
            self._connecting = generation.number
            rank = generation.rank_of(self.worker)
            if rank is None:
                raise JobOver(Refused(f"worker {self.worker} is not in generation {generation.number}"))
            try:
                mesh = connect_mesh(self._listener, generation, rank, self._token, CONNECT_SECONDS)
            except ExchangeFailed as failure:
                suspect = None if failure.peer is None else generation.members[failure.peer].worker
                self.client.exchange_broken(
                    generation=generation.number, step=step, operation="connecting", peer=suspect, reason=str(failure)
                )
                generation = self._next_generation(after=generation.number)
                continue
            group = ThreadedGroup(
                mesh, generation=generation.number, schedule=generation.schedule, codec=codec_by_name(generation.codec)
            )
            with self._lock:
                self._current = self.group = group
            news = self.client.interruption(generation.number)
            if news is not None:  # it came while there was nothing to interrupt
                group.abort(news)
            return

    def _retire(self) -> None:
        """Close the current group, whole or broken, and keep its totals."""
        with self._lock:
            group, self._current = self._current, None
        if group is None:
            return
        group.close()
        self._past = _Past(
            bytes_sent=self._past.bytes_sent + group.bytes_sent,
            idle_seconds=self._past.idle_seconds + group.idle_seconds,
        )

    def abandon(self, reason: str, formed: int | None = None) -> None:
        """From any thread: whatever the script is blocked in must end now. Peers see it as a failure of this worker."""
        with self._lock:
            group = self._current
        if group is not None:
            if formed is None or group.generation < formed:
                group.abort(reason)
        else:
            self._listener.give_up(self._connecting if formed is None else min(self._connecting, formed - 1), reason)

    def report(self, *events: AnyEvent) -> None:
        self.client.report(*events)

    def stop_wish(self) -> str | None:
        return self.client.stop_reason or self._told_to_stop

    @property
    def is_over(self) -> bool:
        """Whether the job has ended, or the coordinator is lost."""
        return self.client.is_over

    def ask_to_stop(self, reason: str) -> None:
        """From a signal handler: vote for a stop at the next exchange."""
        self._told_to_stop = reason

    def set_position(self, step: int, operation: str) -> None:
        self.client.set_position(step, operation)

    def part_done(self, message: PartWritten | PartFailed) -> None:
        if isinstance(message, PartWritten):
            self.client.part_written(message)
        else:
            self.client.part_failed(message)

    def settlement(self, checkpoint: str, timeout: float) -> bool | None:
        known = self.client.wait_settled(checkpoint, timeout)
        return False if known is None and self.client.is_over else known

    def traffic(self) -> Traffic:
        group = self._current
        if group is None:
            return Traffic(self._past.bytes_sent, self._past.idle_seconds)
        return Traffic(self._past.bytes_sent + group.bytes_sent, self._past.idle_seconds + group.idle_seconds)

    def close(self) -> None:
        self._retire()
        self.client.close()
        self._listener.close()


def read_token(path: Path) -> str:
    try:
        token = path.read_text(encoding="ascii").strip()
    except OSError as error:
        raise Refused(f"the token file {path} cannot be read ({error.strerror}); it is made by `shoal run`") from None
    if not token:
        raise Refused(f"the token file {path} is empty; it is made by `shoal run`")
    return token


def local_host(coordinator: Address) -> str:
    """The address of this machine that the coordinator, and so the peers, can reach. No packet is sent."""
    family = socket.AF_INET6 if ":" in coordinator.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((coordinator.host, coordinator.port))
        except OSError as error:
            raise Refused(f"the coordinator's address {coordinator} cannot be reached: {error.strerror}") from None
        return str(probe.getsockname()[0])

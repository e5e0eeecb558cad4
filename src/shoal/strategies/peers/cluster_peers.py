"""Peers of a worker in a job: a coordinator that says who is in, and a TCP mesh for each generation.

`membership.member` decides how a worker gets from one generation into the next; this module carries it out. Not here:
the state that members copy from each other (`training`).
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from shoal.codecs.registry import codec_by_name
from shoal.collectives.group import Group
from shoal.collectives.threaded_group import ThreadedGroup
from shoal.environment import WorkerEnvironment
from shoal.errors import Aborted, ExchangeFailed, PeerLost, Refused, ShoalError
from shoal.events import AnyEvent
from shoal.membership.client import CoordinatorClient
from shoal.membership.member.member import again
from shoal.settings.all_reduce_settings import AllReduceSettings
from shoal.strategies.peers.direct_group import DirectGroupConfig, direct_group
from shoal.strategies.peers.groups import StandInGroup, stand_in_generation
from shoal.strategies.peers.peers import Briefed, JobOver, Peers, Traffic
from shoal.strategies.peers.reaching import by_worker, local_host, tell_from_outside
from shoal.strategies.peers.server_ways import ServerWays
from shoal.terms import Made
from shoal.transport.connection.door import interception
from shoal.transport.memory.team import Team
from shoal.transport.mesh.first_peers import first_peers
from shoal.transport.tcp.tcp import PeerListener, TcpMesh, connect_mesh
from shoal.values import Generation, Member, Unreached
from shoal.wire.messages import (
    PROTOCOL_VERSION,
    Briefing,
    Done,
    ExchangeBroken,
    Inject,
    Join,
    PartFailed,
    PartWritten,
    Ready,
)
from shoal.wire.token_file import TokenFileError, read_token

LEAST_CONNECT_SECONDS = 2.0  # for all peers of a generation to connect; more where the heartbeat limit is longer
COORDINATOR_SECONDS = 300.0  # for the coordinator to answer; it may have a slow store to look at first


class ClusterPeers(Peers):
    def __init__(self, environment: WorkerEnvironment) -> None:
        self.worker = environment.worker
        self._token = _token(Path(environment.token_file))
        self._listener = PeerListener(local_host(environment.coordinator), self._token)
        self._before = Traffic()
        self._codec_named = ""  # what the job's codec was made from
        self._lock = threading.Lock()
        self._current: ThreadedGroup | None = None
        self._mesh: TcpMesh | None = None  # of the newest group, or of the one that is being put together
        self._team: Team | None = None  # of a group that is being put together
        self._told_to_leave: str | None = None  # why, where a signal told this process to leave
        self._interrupt: Callable[[str], None] | None = None  # ends what the script waits for besides the group
        self._interrupted: str | None = None  # why the wait was ended
        self._interrupting = threading.Lock()  # held while interrupting; taken before the locks of what is interrupted
        self._unreached = Unreached()  # members that were missing in the last try to connect
        self._said: Ready | ExchangeBroken | None = None  # the newest notice
        self._connecting = 0  # number of the newest generation that this worker has tried to connect in
        join = Join(
            version=PROTOCOL_VERSION,
            worker=environment.worker,
            host=socket.gethostname(),
            process=os.getpid(),
            address=self._listener.address,
            shoal=importlib.metadata.version("shoal"),
            torch=torch.__version__.partition("+")[0],  # the rest names the build, for a processor or a GPU
            python=".".join(platform.python_version_tuple()[:2]),
        )
        try:
            self.client = CoordinatorClient.connect(
                environment.coordinator, self._token, join, timeout=COORDINATOR_SECONDS
            )
        except BaseException:
            self._listener.close()
            raise
        self._me = Member(rank=0, worker=join.worker, host=join.host, process=join.process, address=join.address)
        self.is_new = self.client.welcome.generation is not None and not self.client.welcome.is_member
        self._stand_in(self.client.welcome.generation)
        self._listener.silence_limit = self.client.settings.heartbeat_limit
        self._listener.on_interception = self._intercepted
        self.client.stalled = self._stalled
        self.client.on_fault = self._suffer
        self.client.on_interrupt = self.abandon
        self._ways = ServerWays(self.client, self._token, self.worker) if self.client.welcome.servers else None
        self.servers = None if self._ways is None else self._ways.client

    def _intercepted(self, source: str) -> None:
        self.report(interception(f"worker {self.worker}", source))

    def _stand_in(self, current: Generation | None) -> None:
        rank = 0 if current is None else current.size
        me = Member(rank, self._me.worker, self._me.host, self._me.process, self._me.address)
        self.generation = stand_in_generation(me, current)
        self.group: Group = StandInGroup(rank)

    # Into the next generation

    def unreached(self) -> Unreached:
        with self._lock:
            mesh, self._unreached, found = self._mesh, Unreached(), self._unreached
            is_broken = self._current is not None and self._current.is_failed
        if mesh is None or not is_broken:
            return found
        number = self.generation.number
        seen = mesh.unreached(lambda: self.client.interruption(number) is not None)
        return by_worker(seen, self.generation)

    def leave_group(self, reason: str) -> None:
        with self._lock:
            group, self._current = self._current, None
        if group is None:
            return
        group.leave(reason)
        self._before = self._before.plus(Traffic(group.bytes_sent, group.idle_seconds))

    def tell(self, notice: Ready | ExchangeBroken) -> None:
        self._said = notice
        if isinstance(notice, Ready):
            self._wait_outside(notice, lambda: False)
        else:
            self.client.tell(notice)

    def _wait_outside(self, notice: Ready, may_go: Callable[[], bool]) -> None:
        if self.servers is None:
            tell_from_outside(self.client, self._listener, self.worker, notice, may_go)
        else:
            self.client.tell(notice)

    def await_generation(self, after: int) -> Generation:
        try:
            while not isinstance(word := self.client.wait_for_word(after), Generation):
                if isinstance(word, Briefing):
                    self.is_new = True  # also where the first generation was formed without this worker
                    self._stand_in(word.generation)
                    raise Briefed(word.first, word.calls)
                self.tell(again(self._said, after))  # this worker was put out since its last notice: say it again
            return word
        except ShoalError as error:
            raise JobOver(error) from None

    def call_made(self, index: int, made: Made) -> None:
        self.client.call_made(index, made)

    def finish(self, notice: Done) -> Generation | None:
        self.leave_group("its script is done")
        try:
            return self.client.finish(
                notice, self.leave_wish, lambda ready: self._wait_outside(ready, lambda: self.leave_wish() is not None)
            )
        except ShoalError as error:
            raise JobOver(error) from None

    def reach(self, point: int) -> None:
        self.client.reach(point)

    def connect(self, generation: Generation) -> None:
        rank = generation.rank_of(self.worker)
        if rank is None:
            raise ShoalError(f"worker {self.worker} is not in generation {generation.number}")
        self._connecting = generation.number
        if generation.codec != self._codec_named:
            self.codec, self._codec_named = codec_by_name(generation.codec), generation.codec
        if (news := self.client.interruption(generation.number)) is not None:
            raise Aborted(news)  # this news came before there was a connection to interrupt
        group = self._direct_group(generation, rank) if self.servers is None else self._relayed_group(generation, rank)
        self.generation = generation
        with self._lock:
            self._current = self.group = group
        if (news := self.client.interruption(generation.number)) is not None:  # it came in between
            group.abort(news)

    def _direct_group(self, generation: Generation, rank: int) -> ThreadedGroup:
        timeout = max(LEAST_CONNECT_SECONDS, self.client.settings.heartbeat_limit)
        try:
            peers = first_peers(rank, generation.size)
            mesh = connect_mesh(self._listener, generation, rank, timeout, peers=peers)
        except PeerLost as lost:
            self._unreached = by_worker(lost.unreached, generation)
            raise
        mesh.on_silence = lambda peer: self.client.unanswered(generation.number, generation.members[peer].worker)
        with self._lock:
            self._mesh = mesh
        try:
            return self._put_together(mesh, generation)
        except BaseException as error:
            if isinstance(error, ExchangeFailed):
                mesh.abort(f"the group did not come about: {error}")
                seen = mesh.unreached(lambda: self.client.interruption(generation.number) is not None)
                self._unreached = by_worker(seen, generation)
            mesh.close()
            raise

    def _relayed_group(self, generation: Generation, rank: int) -> ThreadedGroup:
        assert self._ways is not None
        mesh = self._ways.relay(generation, rank) if generation.size > 1 else None
        return ThreadedGroup.over(mesh, generation.number, generation.schedule, self.codec)

    def _put_together(self, mesh: TcpMesh, generation: Generation) -> ThreadedGroup:
        if (news := self.client.interruption(generation.number)) is not None:
            raise Aborted(news)
        config = DirectGroupConfig(
            settings=self.client.settings.of(AllReduceSettings),
            stopped_limit=self.client.settings.heartbeat_limit,
            codec=self.codec,
            host=self._listener.address.host,
            faults=self._listener.faults,
            report=self.report,
            hold=self._hold_team,
        )
        return direct_group(mesh, generation, config)

    def _hold_team(self, team: Team | None) -> None:
        with self._lock:
            self._team = team

    def abandon(self, reason: str, formed: int | None = None) -> None:
        """From any thread: end now whatever the script is blocked in. Peers see that as a failure of this worker.

        `formed`: do so only in generations with a lower number.
        """
        with self._lock:
            group, mesh, team = self._current, self._mesh, self._team
        if group is not None:
            if formed is None or group.generation < formed:
                group.abort(reason)
        else:
            if mesh is not None and (formed is None or self._connecting < formed):
                mesh.abort(reason)  # its group may be in the making
                if team is not None:
                    team.give_up(reason)
            self._listener.give_up(self._connecting if formed is None else min(self._connecting, formed - 1), reason)

        with self._interrupting:
            if self._interrupt is not None and (formed is None or self.generation.number < formed):
                self._interrupted = reason
                self._interrupt(reason)

    def interruption(self) -> str | None:
        return self.client.interruption(self.generation.number)

    @contextmanager
    def interrupting(self, interrupt: Callable[[str], None]) -> Iterator[None]:
        with self._interrupting:
            self._interrupt, self._interrupted = interrupt, None
        try:
            if (news := self.interruption()) is not None:  # it came before
                raise Aborted(news)
            yield
        finally:
            with self._interrupting:
                self._interrupt = None
        if self._interrupted is not None:  # the interruption came with the answer: what was interrupted answers no more
            raise Aborted(self._interrupted)

    # Wishes, and permission to go on

    def regroup_wish(self) -> str | None:
        return self.client.regroup_wish

    def leave_wish(self) -> str | None:
        return self._told_to_leave

    def ask_to_leave(self, reason: str) -> None:
        """From a signal handler: hand over at the end of a step."""
        self._told_to_leave = reason

    def hold(self, *, at_end: bool = False) -> None:
        settings = self.client.settings
        try:
            limit = settings.absence_limit
            self.client.wait_heard(min(limit, settings.heartbeat_limit) if at_end else limit)
        except ShoalError as error:
            raise JobOver(error) from None

    def stop_wish(self) -> str | None:
        return self.client.stop_reason

    @property
    def is_over(self) -> bool:
        """Whether the job has ended, or the coordinator is lost."""
        return self.client.is_over

    def disk_is_full(self) -> bool:
        """Writing should fail as on a full disk: a fault on purpose."""
        return time.monotonic() < self.client.disk_full_until

    # What this worker tells

    def report(self, *events: AnyEvent) -> None:
        self.client.report(*events)

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

    @property
    def idle_seconds(self) -> float:
        """As in `traffic`, but without the servers' part, which takes the lock of their client."""
        group = self._current
        return self._before.idle_seconds + (0.0 if group is None else group.idle_seconds)

    def traffic(self) -> Traffic:
        group, past = self._current, self._before
        found = Traffic(past.bytes_sent + (0 if group is None else group.bytes_sent), self.idle_seconds)
        if self.servers is not None:
            sent = self.servers.sent
            found = found.plus(Traffic(sent.over_network, bytes_shared=sent.by_memory))
        return found

    def close(self, *, keeps_line: bool = False) -> None:
        """`keeps_line`: the client of the coordinator stays, for whoever closes it later."""
        with self._lock:
            group, self._current = self._current, None
        if group is not None:
            group.close()
        if self.servers is not None:
            self.servers.close()
        self.client.on_interrupt = self.client.on_fault = None  # there is nothing to interrupt any more
        if not keeps_line:
            self.client.close()
        self._listener.close()

    def _suffer(self, fault: Inject) -> None:
        """A link is cut or slow, on purpose; from the client's thread."""
        if fault.fault == "slow":
            self._listener.faults.slow(fault.peer, fault.seconds, fault.rate)
            return
        self._listener.faults.cut(fault.peer, fault.seconds)
        with self._lock:
            mesh, group = self._mesh, self._current
        if mesh is not None:
            mesh.sever(fault.peer)
        if group is not None:  # ranks of one machine would go on without the network
            rank = None if fault.peer is None else self.generation.rank_of(fault.peer)
            if fault.peer is None or rank is not None:
                group.lose(rank, "the link is cut, on purpose")

    def _stalled(self) -> float:
        group = self._current
        return 0.0 if group is None else group.stalled


def _token(path: Path) -> str:
    try:
        return read_token(path)
    except TokenFileError as error:
        raise Refused(
            f"the token file {path} {error}; `shoal run` makes it, and removes it at the end of the job"
        ) from None

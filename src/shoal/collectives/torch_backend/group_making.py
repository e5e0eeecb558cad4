"""From a meeting of ranks to a working group: which ranks share a machine, and what connects the rest.

Ranks of one machine need no socket. If there are several machines, each rank listens on the address from which it
reaches torch's store, and only the group's token opens a connection.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass

import msgspec
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from shoal.collectives.assembly import GroupConfig, group_in_memory, group_over
from shoal.collectives.mailbox.lane import Lane
from shoal.collectives.mailbox.mailbox import Mailbox
from shoal.collectives.mailbox.memory_lane import MemoryLane
from shoal.collectives.mailbox.tcp_lane import TcpLane
from shoal.collectives.threaded_group import ThreadedGroup
from shoal.collectives.torch_backend.rendezvous import Meeting
from shoal.collectives.torch_backend.vigil import Vigil
from shoal.transport.connection.endpoint import Endpoint
from shoal.transport.memory import neighbours
from shoal.transport.memory.neighbours import Neighbourhood
from shoal.transport.tcp.tcp import PeerListener, TcpMesh, connect_all, connect_mesh
from shoal.values import Address, Generation, Member

COLLECTIVES, POST = 1, 2  # numbers of the two sets of connections


@dataclass(frozen=True)
class MadeGroup:
    group: ThreadedGroup
    mailbox: Mailbox | None  # None in a group of one
    vigil: Vigil | None = None  # if some ranks are on other machines


class _Making:
    """One rank's way from the meeting to the group. If it fails, everything that it has made is released."""

    def __init__(self, meeting: Meeting, host: str, timeout: float) -> None:
        self._meeting = meeting
        self._host = host
        self._timeout = timeout
        self._made: list[PeerListener | Lane | TcpMesh | Endpoint] = []

    def run(self) -> MadeGroup:
        rank, size = self._meeting.rank, self._meeting.size
        hood = neighbours.form(self._meeting.exchange, rank, size)
        try:
            return self._connect(hood)
        except BaseException:
            if hood.team is not None:
                hood.team.close()
            for made in self._made:
                made.close()
            raise

    def _connect(self, hood: Neighbourhood) -> MadeGroup:
        rank, size = self._meeting.rank, self._meeting.size
        names = {place: attendant.words for place, attendant in enumerate(self._meeting.attendants)}
        lane = MemoryLane.form(self._meeting.exchange, rank, hood)
        lanes: list[Lane] = [] if lane is None else [lane]
        self._made += lanes
        if len(hood.hosts) == 1:
            group = group_in_memory(hood, rank, GroupConfig(names=names))
            return MadeGroup(group, Mailbox(rank, size, lanes, names))
        listener = PeerListener(self._host, self._meeting.token)
        self._made.append(listener)
        members = self._introduce(listener.address)
        mesh = connect_mesh(listener, _generation(COLLECTIVES, members), rank, self._timeout)
        self._made.append(mesh)
        connections = connect_all(listener, _generation(POST, members), rank, self._timeout)
        self._made += connections.values()
        self._meeting.exchange(b"")  # a rank that still connects would take a closed connection for a lost rank
        for neighbour in set(hood.host_of(rank)) - {rank}:
            connections.pop(neighbour).close()
        vigil = Vigil(listener, {peer: members[peer].address for peer in connections})
        lanes.append(TcpLane(connections, listener.silence_limit))
        self._made.append(lanes[-1])
        group = group_over(mesh, hood, GroupConfig(names=names, address=listener.address.host))
        return MadeGroup(group, Mailbox(rank, size, lanes, names), vigil)

    def _introduce(self, address: Address) -> tuple[Member, ...]:
        told = self._meeting.exchange(msgspec.msgpack.encode(address))
        addresses = [msgspec.msgpack.decode(data, type=Address) for data in told]
        attendants = self._meeting.attendants
        return tuple(
            Member(rank, rank, attendant.host, attendant.process, addresses[rank])
            for rank, attendant in enumerate(attendants)
        )


def form(meeting: Meeting, host: str, timeout: float) -> MadeGroup:
    """The group of the ranks that met. `host` is where this rank can be reached; `timeout` in seconds."""
    if meeting.size == 1:
        return MadeGroup(ThreadedGroup(None, COLLECTIVES), None)
    return _Making(meeting, host, timeout).run()


def _generation(number: int, members: tuple[Member, ...]) -> Generation:
    return Generation(number, members, "auto", "identity", "a torch process group")


def host_towards(store: Store) -> str:
    """This machine's address on the route to the store's process: the other ranks can reach it there too."""
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    try:
        if isinstance(store, TCPStore):
            return _route(store.host, store.port)
        found = socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM)
        return str(found[0][4][0])
    except OSError:
        return "127.0.0.1"


def _route(host: str, port: int) -> str:
    family, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(place)  # no packet is sent: only the route is looked up
        return str(probe.getsockname()[0])

"""What happens to a job's machines: what workers run on, where processes were put and why, links and their use."""

from __future__ import annotations

from shoal.bounds import Count, Members, Name, Ordinal, Text, Total
from shoal.events.event import Event
from shoal.values import HostLink


class WorkerEquipped(Event, frozen=True, tag="worker-equipped"):
    """What a worker runs on; told with its first report."""

    worker: Ordinal
    host: Name
    system: Name  # kernel and its version
    processor: Name  # model; empty: not known
    cores: Ordinal  # that the process may use
    memory: Total  # bytes that the machine, or the container, has; 0: not known
    gpu: Name  # that the process uses; empty: none
    python: Name  # version
    torch: Name
    shoal: Name
    node: Name = ""  # as the engine names its machine; empty: the launcher's own


class ProcessPlaced(Event, frozen=True, tag="process-placed"):
    """The engine has chosen the machine for a process: a worker's, a server's or a spare one's."""

    process: Name  # such as "worker 3"
    node: Name
    host: Name
    reason: Text
    worker: Ordinal | None = None
    server: Ordinal | None = None


class EngineSaid(Event, frozen=True, tag="engine-said"):
    """What the engine has told the user: a process waits for a place, a node is gone, came or cannot be used."""

    text: Text
    is_problem: bool


class CarrierChosen(Event, frozen=True, tag="carrier-chosen"):
    """What moves tensors in this generation. Told where a worker has a GPU, or a carrier was asked for; by rank 0."""

    generation: Ordinal
    carrier: Name  # shoal, nccl, gloo or mpi
    is_asked: bool  # with --carrier
    reason: Text


class LinksMeasured(Event, frozen=True, tag="links-measured"):
    """The links between hosts when a generation formed, measured between one worker of each. Sent by rank 0 only."""

    generation: Ordinal
    hosts: Ordinal  # machines, as workers find them that share memory: two may have one name
    links: Members[HostLink]  # the slowest ones, slowest first
    measured: Total  # directions of pairs that were measured; `links` may have fewer
    seconds: float  # that measuring took


class ScheduleChosen(Event, frozen=True, tag="schedule-chosen"):
    """Who sends what to whom in this generation, by the size of a tensor. Sent by rank 0 only."""

    generation: Ordinal
    setting: Name  # what was asked for; auto: the links decide
    ranges: Members[tuple[Count, Name]]  # bytes from which on each schedule reduces; the first is from 0
    order: Members[Ordinal]  # of the ranks around a ring; empty: 0, 1, 2, ...
    seconds: float  # that measuring the links took; 0: nothing was measured
    reason: Text  # with the figures behind it

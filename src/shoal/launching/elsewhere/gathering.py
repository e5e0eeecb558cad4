"""What the engines over nodes have in common: the nodes come together, and reach this machine's coordinator."""

from __future__ import annotations

import contextlib
import socket
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from shoal.engines import texts as engine_texts
from shoal.engines.engine import Engine
from shoal.engines.nodes.node_engine import GATHER_SECONDS, NodeEngine, NodeEngineConfig
from shoal.engines.nodes.provider import Provider
from shoal.engines.nodes.script_files import NodeFolder, ScriptFolder
from shoal.environment import parse_address
from shoal.errors import UsageError
from shoal.job_config import JobConfig
from shoal.launching import texts
from shoal.launching.processes.specs import public
from shoal.transport.connection.strangers import raise_descriptor_limit
from shoal.values import Address
from shoal.watch.screen.slow_work import told_if_slow

MOST_UNKNOWN = 3  # hosts without an address that are passed over; looking each of them up may take seconds
Folder = ScriptFolder | None  # None: the job runs a function that needs no file


@dataclass(frozen=True)
class Elsewhere:
    """The engine of a job that does not run on this machine alone."""

    config: JobConfig  # with an address that other machines reach
    open_engine: Callable[[Address], Engine]  # gets the address at which the coordinator listens
    make_way: Callable[[], None] | None = None  # called when the job has stopped because its machines are taken away


@dataclass(frozen=True)
class Nodes:
    """What an engine over nodes needs besides its provider."""

    config: JobConfig
    bound: Address  # where the coordinator listens
    folder: Folder
    folders: Mapping[str, NodeFolder] = field(default_factory=dict)  # by node, where it is not as here
    fewest: int = 0  # workers that the first nodes must have slots for; 0: all
    seconds: float = 0.0  # for them to come; 0: as many as an engine usually takes
    more_room: str = ""  # advice for the user if too few nodes came and none was expected by name


def gathered(provider: Provider, nodes: Nodes) -> Engine:
    """The engine, once all its first nodes can be used. Closes the provider if they cannot."""
    config, host = nodes.config, nodes.bound.host
    raise_descriptor_limit()  # each node has a connection, and of some engines a program with pipes
    with contextlib.ExitStack() as failed, _probe(config) as probe:
        failed.callback(provider.close)
        over = NodeEngineConfig(
            Address(host, 0),
            reach=public(nodes.bound).host,
            folder=nodes.folder,
            folders=nodes.folders,
            probe=probe,
            more_room=nodes.more_room,
        )
        engine = NodeEngine(over, provider)
        failed.callback(engine.close)
        with told_if_slow(texts.REACHING_NODES):
            engine.gather(nodes.fewest or config.workers, nodes.seconds or GATHER_SECONDS)
        failed.pop_all()
    if engine.blind:
        warning = texts.checkpoints_not_shared(engine.blind, config.checkpoint_to or config.run_dir or "runs")
        print(f"shoal: warning: {warning}", file=sys.stderr, flush=True)
    return engine


@contextlib.contextmanager
def _probe(config: JobConfig) -> Iterator[str]:
    """A file beside the job's checkpoints, while the block runs; empty if checkpoints need no shared file system."""
    place = Path(config.checkpoint_to or config.run_dir or "runs").absolute()
    if "://" in config.checkpoint_to or not config.checkpoints.at_end:
        yield ""
        return
    folder = next(parent for parent in (place, *place.parents) if parent.is_dir())
    with contextlib.ExitStack() as stack:
        name = ""
        with contextlib.suppress(OSError):  # whoever writes there says why it cannot be done
            name = stack.enter_context(tempfile.NamedTemporaryFile(prefix=".shoal-probe-", dir=folder)).name
        yield name


def with_reachable_address(
    config: JobConfig, hosts: Callable[[], Iterable[str]], nearest: Callable[[str], str] = lambda _: ""
) -> JobConfig:
    """With an address of this machine that leads to the hosts, unless the user has given one.

    `hosts` may be lazy: no more of them are asked for than are needed. `nearest` gets a host that nobody knows, and
    returns one that the user may have meant, or nothing.
    """
    if parse_address(config.address, named="--address").is_loopback and "address" not in config.given:
        return msgspec.structs.replace(config, address=_address_towards(hosts(), nearest) or config.address)
    return config


def _address_towards(hosts: Iterable[str], nearest: Callable[[str], str]) -> str:
    """The address of the interface that leads to the first host, or to the first that is not this machine itself.

    Hosts that nobody knows are passed over, if there are few: whoever connects to them has better words for it.
    """
    found, unknown = "", list[str]()
    for host in hosts:
        try:
            family, kind, _, _, place = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
            with socket.socket(family, kind) as probe:  # no packet is sent
                probe.connect(place)
                own = Address(str(probe.getsockname()[0]), 0)
        except OSError as error:
            unknown.append(engine_texts.no_address_for(host, error.strerror or error, nearest(host)))
            if len(unknown) == MOST_UNKNOWN:
                break
        else:
            if not own.is_loopback:
                return str(own)
            found = found or str(own)
    if unknown and not found:
        raise UsageError(unknown[0])
    return found

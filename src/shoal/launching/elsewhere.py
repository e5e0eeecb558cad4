"""Where a job's workers and servers run if not on this machine (`--on`): the engine, and the address for the others.

What can be seen to be wrong is said before anything is made; what hosts have to say about it, before any worker starts.
The modules of an engine are imported only if it is chosen.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from shoal.engines import texts as engine_texts
from shoal.engines.engine import Engine
from shoal.entry.function_script import recorded_call
from shoal.environment import parse_address
from shoal.errors import UsageError
from shoal.job_config import LOCAL, JobConfig
from shoal.launching import texts
from shoal.launching.processes.specs import public
from shoal.values import Address
from shoal.watch.screen.slow_work import told_if_slow


@dataclass(frozen=True)
class Elsewhere:
    """The engine of a job that does not run on this machine alone."""

    config: JobConfig  # with an address that other machines reach
    open_engine: Callable[[Address], Engine]  # gets the address at which the coordinator listens


def chosen_engine(config: JobConfig, script: str, arguments: tuple[str, ...]) -> Elsewhere | None:
    """None: this machine. Raises `UsageError` for what can be seen before any host is asked."""
    if config.on == LOCAL:
        return None
    if (call := recorded_call(script, arguments)) is not None:
        raise UsageError(texts.function_elsewhere(call.name, config.on))
    from shoal.engines.nodes.node_engine import NodeEngine, NodeEngineConfig, NodeFolder
    from shoal.engines.nodes.script_files import read_folder
    from shoal.engines.ssh.hosts_file import read_hosts
    from shoal.engines.ssh.ssh_provider import SshProvider, find_ssh, real_name

    hosts = read_hosts(Path(config.hosts))
    slots = sum(host.slots for host in hosts)
    if all(host.slots for host in hosts) and slots < config.workers:
        raise UsageError(engine_texts.too_few_slots(config.workers, slots, len(hosts)))
    find_ssh()
    folder = read_folder(Path(script))
    folders = {host.name: NodeFolder(host.folder or str(folder.path), host.is_shared) for host in hosts}

    def open_engine(bound: Address) -> Engine:
        with _probe(config) as probe:
            nodes = NodeEngineConfig(
                Address(bound.host, 0), reach=public(bound).host, folder=folder, folders=folders, probe=probe
            )
            engine = NodeEngine(nodes, SshProvider(hosts))
            try:
                with told_if_slow("reaching the hosts"):
                    engine.gather(config.workers)
            except BaseException:
                engine.close()
                raise
        if engine.blind:
            warning = texts.checkpoints_not_shared(engine.blind, config.checkpoint_to or config.run_dir or "runs")
            print(f"shoal: warning: {warning}", file=sys.stderr, flush=True)
        return engine

    config = msgspec.structs.replace(config, hosts=str(Path(config.hosts).absolute()))  # for whoever resumes the job
    if parse_address(config.address, named="--address").is_loopback and "address" not in config.given:
        config = msgspec.structs.replace(config, address=_address_towards([real_name(host) for host in hosts]))
    return Elsewhere(config, open_engine)


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


def _address_towards(hosts: list[str]) -> str:
    """The address of the interface that leads to the first host, or to the first that is not this machine itself."""
    found = ""
    for host in hosts:
        try:
            family, kind, _, _, place = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
            with socket.socket(family, kind) as probe:  # no packet is sent
                probe.connect(place)
                own = Address(str(probe.getsockname()[0]), 0)
        except OSError as error:
            raise UsageError(engine_texts.no_address_for(host, error.strerror or error)) from None
        if not own.is_loopback:
            return str(own)
        found = found or str(own)
    return found

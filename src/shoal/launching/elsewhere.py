"""Where a job's workers and servers run if not on this machine (`--on`): the engine, and the address for the others.

What can be seen to be wrong is said before anything is made; what hosts have to say about it, before any worker starts.
The modules of an engine are imported only if it is chosen.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from shoal.engines import texts as engine_texts
from shoal.engines.engine import Engine
from shoal.entry.function_script import recorded_call
from shoal.environment import inherited, parse_address
from shoal.errors import UsageError
from shoal.job_config import LOCAL, SSH, JobConfig
from shoal.launching import texts
from shoal.launching.processes.specs import public
from shoal.settings.allocation_wishes import node_range, salloc_options, slurms_time, time_limit
from shoal.values import Address
from shoal.watch.screen.display import announce
from shoal.watch.screen.slow_work import told_if_slow

if TYPE_CHECKING:
    from shoal.engines.nodes.node_engine import NodeFolder
    from shoal.engines.nodes.provider import Provider
    from shoal.engines.nodes.script_files import ScriptFolder
    from shoal.engines.slurm.allocation import Wish


@dataclass(frozen=True)
class Elsewhere:
    """The engine of a job that does not run on this machine alone."""

    config: JobConfig  # with an address that other machines reach
    open_engine: Callable[[Address], Engine]  # gets the address at which the coordinator listens
    make_way: Callable[[], None] | None = None  # called when the job has stopped because its machines are taken away


def chosen_engine(config: JobConfig, script: str, arguments: tuple[str, ...]) -> Elsewhere | None:
    """None: this machine. Raises `UsageError` for what can be seen before any host is asked."""
    if config.on == LOCAL:
        return None
    if (call := recorded_call(script, arguments)) is not None:
        raise UsageError(texts.function_elsewhere(call.name, config.on))
    return (_ssh if config.on == SSH else _slurm)(config, script)


def _ssh(config: JobConfig, script: str) -> Elsewhere:
    from shoal.engines.nodes.node_engine import NodeFolder
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
        return _gathered(SshProvider(hosts), _Nodes(config, bound, folder, folders))

    config = msgspec.structs.replace(config, hosts=str(Path(config.hosts).absolute()))  # for whoever resumes the job
    return Elsewhere(_reachable(config, lambda: [real_name(host) for host in hosts]), open_engine)


def _slurm(config: JobConfig, script: str) -> Elsewhere:
    from shoal.engines.nodes.script_files import read_folder
    from shoal.engines.slurm import allocation as slurm
    from shoal.engines.slurm.held_allocation import HeldAllocation
    from shoal.engines.slurm.slurm_programs import find_program, node_addresses, node_names
    from shoal.engines.slurm.slurm_provider import SlurmProvider

    variables = inherited({})
    job = slurm.job_in(variables)
    if job and config.nodes and "nodes" in config.given:  # else it is what an earlier run of the job was given
        raise UsageError(engine_texts.nodes_in_allocation(config.nodes, job))
    if not job and not config.nodes:
        raise UsageError(engine_texts.NO_ALLOCATION)
    for program in ("srun", "scontrol", "sinfo", *(() if job else ("salloc",))):
        find_program(program)
    folder = read_folder(Path(script))
    own = slurm.allocation_in(variables, node_names(variables[slurm.NODES])) if job else None

    def open_engine(bound: Address) -> Engine:
        if own is not None:
            return _gathered(SlurmProvider(own), _Nodes(config, bound, folder))
        wish = _wish(config)
        held = HeldAllocation(wish)
        try:
            with told_if_slow(engine_texts.waiting_for_slurm(wish.fewest, wish.most)):
                told = held.wait()
            given = slurm.allocation_in(told, node_names(told[slurm.NODES]))
            provider = SlurmProvider(given, held)
        except BaseException:
            held.close()
            raise
        return _gathered(provider, _Nodes(config, bound, folder))

    names = [node.name for node in own.nodes] if own is not None else []
    reachable = _reachable(config, lambda: list(node_addresses(names).values()))
    return Elsewhere(reachable, open_engine, partial(_make_way, job) if job else None)


def _make_way(job: str) -> None:
    """A job that ends by itself while it is preempted counts as done: Slurm would not start it again."""
    from shoal.engines.slurm.slurm_programs import is_preempted, requeue

    with contextlib.suppress(UsageError):  # Slurm does not answer: it has ended the job
        if is_preempted(job):
            announce("plain", engine_texts.goes_back_to_queue(job))
            requeue(job)


def _wish(config: JobConfig) -> Wish:
    from shoal.engines.slurm.allocation import Wish

    fewest, most = node_range(config.nodes)
    seconds = time_limit(config.time) if config.time else 0
    return Wish(
        fewest=fewest,
        most=most,
        workers=config.workers,
        threads=config.threads,
        seconds=seconds,
        time=slurms_time(seconds) if seconds else "",
        options=salloc_options(config.slurm),
    )


@dataclass(frozen=True)
class _Nodes:
    """What an engine over nodes needs besides its provider."""

    config: JobConfig
    bound: Address  # where the coordinator listens
    folder: ScriptFolder
    folders: Mapping[str, NodeFolder] = field(default_factory=dict)


def _gathered(provider: Provider, nodes: _Nodes) -> Engine:
    """The engine, once all its first nodes can be used. Closes the provider if they cannot."""
    from shoal.engines.nodes.node_engine import NodeEngine, NodeEngineConfig

    config, host = nodes.config, nodes.bound.host
    with _probe(config) as probe:
        over = NodeEngineConfig(
            Address(host, 0), reach=public(nodes.bound).host, folder=nodes.folder, folders=nodes.folders, probe=probe
        )
        engine = NodeEngine(over, provider)
        try:
            with told_if_slow("reaching the nodes"):
                engine.gather(config.workers)
        except BaseException:
            engine.close()
            raise
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


def _reachable(config: JobConfig, hosts: Callable[[], list[str]]) -> JobConfig:
    """With an address of this machine that leads to the hosts, unless the user has given one."""
    if parse_address(config.address, named="--address").is_loopback and "address" not in config.given:
        return msgspec.structs.replace(config, address=_address_towards(hosts()))
    return config


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

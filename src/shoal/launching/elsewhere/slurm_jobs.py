"""`--on slurm`: the nodes of the allocation that this process is in, or of one that it asks for."""

from __future__ import annotations

import contextlib
from functools import partial

from shoal.engines import texts
from shoal.engines.engine import Engine
from shoal.engines.nodes.agent_programs import seconds_to_start
from shoal.engines.nodes.node_engine import GATHER_SECONDS
from shoal.engines.slurm import allocation as slurm
from shoal.engines.slurm.held_allocation import HeldAllocation
from shoal.engines.slurm.slurm_programs import find_program, is_preempted, node_addresses, node_names, requeue
from shoal.engines.slurm.slurm_provider import SlurmProvider
from shoal.environment import inherited
from shoal.errors import UsageError
from shoal.job_config import JobConfig
from shoal.launching.elsewhere.gathering import Elsewhere, Folder, Nodes, gathered, with_reachable_address
from shoal.settings.engines.slurm_settings import SlurmSettings, node_range, salloc_options, slurms_time, time_limit
from shoal.values import Address
from shoal.watch.screen.display import announce
from shoal.watch.screen.slow_work import told_if_slow


def chosen(config: JobConfig, folder: Folder) -> Elsewhere:
    variables = inherited({})
    job = slurm.job_in(variables)
    nodes = config.of(SlurmSettings).nodes
    if job and nodes and "nodes" in config.given:  # else it is what an earlier run of the job was given
        raise UsageError(texts.nodes_in_allocation(nodes, job))
    if not job and not nodes:
        raise UsageError(texts.NO_ALLOCATION)
    for program in ("srun", "scontrol", "sinfo", *(() if job else ("salloc",))):
        find_program(program)
    own = slurm.allocation_in(variables, node_names(variables[slurm.NODES])) if job else None

    def open_engine(bound: Address) -> Engine:
        provider = SlurmProvider(own) if own is not None else _asked_for(_wish(config))
        seconds = GATHER_SECONDS + seconds_to_start(provider.node_count)
        return gathered(provider, Nodes(config, bound, folder, fewest=config.min_workers, seconds=seconds))

    names = [node.name for node in own.nodes] if own is not None else []
    reachable = with_reachable_address(config, lambda: list(node_addresses(names).values()))
    return Elsewhere(reachable, open_engine, partial(_make_way, job) if job else None)


def _asked_for(wish: slurm.Wish) -> SlurmProvider:
    held = HeldAllocation(wish)
    try:
        with told_if_slow(texts.waiting_for_slurm(wish.fewest, wish.most)):
            told = held.wait()
        return SlurmProvider(slurm.allocation_in(told, node_names(told[slurm.NODES])), held)
    except BaseException:
        held.close()
        raise


def _make_way(job: str) -> None:
    """A job that ends by itself while it is preempted counts as done: Slurm would not start it again."""
    with contextlib.suppress(UsageError):  # Slurm does not answer: it has ended the job
        if is_preempted(job):
            announce("plain", texts.goes_back_to_queue(job))
            requeue(job)


def _wish(config: JobConfig) -> slurm.Wish:
    settings = config.of(SlurmSettings)
    fewest, most = node_range(settings.nodes)
    seconds = time_limit(settings.time) if settings.time else 0
    return slurm.Wish(
        fewest=fewest,
        most=most,
        workers=config.workers,
        threads=config.threads,
        seconds=seconds,
        time=slurms_time(seconds) if seconds else "",
        options=salloc_options(settings.slurm),
    )

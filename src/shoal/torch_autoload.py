"""What torch loads at the end of `import torch`: the backend `shoal`, and what plain torch scripts need in a job.

The backend is registered by name only, and imported when a script makes a process group with it. Under `shoal run` each
worker already is one process of the job, so a script that calls `torch.multiprocessing.spawn` would start n processes
in each of n workers. In worker processes this module replaces `spawn` and `start_processes` by a function that reports
`ScriptStartsProcesses` to the job and exits. A process that a worker started by other means may not make a process
group under another rank than that worker's. DataLoader workers do neither. A worker that trains a model of its own,
beside the others, is noticed in its first optimizer step (`entry.lone_steps`).

torch's store authenticates nobody, and torch lets it listen on all interfaces. If the workers look for the store on
loopback, this module makes it listen there alone. Outside a job it only adds the name of the backend, and `import
torch` never fails because of it.
"""

from __future__ import annotations

import functools
import inspect
import ipaddress
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from shoal.entry import lone_steps, texts
from shoal.environment import (
    WorkerEnvironment,
    is_worker_itself,
    keep_torch_on_loopback,
    own_node,
    spans_nodes,
    store_is_the_agents,
    torch_rank,
    worker_environment,
)
from shoal.errors import Refused, ScriptStartsProcesses, ShoalError, UsageError
from shoal.training.mistakes import file_hook
from shoal.wire.token_file import TokenFileError, read_token

if TYPE_CHECKING:
    from datetime import timedelta
    from types import FrameType

    from torch._C._distributed_c10d import ProcessGroup, Store

BACKEND = "shoal"
REPLACED = ("spawn", "start_processes")
MAKING_STORES = "_create_c10d_store"  # torch's function in `torch.distributed.rendezvous`, for env:// and tcp://
MAKING_GROUPS = "_new_process_group_helper"  # torch's function behind everything that makes a process group
STORE_PARAMETERS = ("hostname", "port", "rank", "world_size", "timeout", "use_libuv")
BACKLOG = 2048  # connections that may wait to be accepted: as torch has it
REPORT_TIMEOUT = 5.0  # seconds to reach the coordinator, which is up long before a script gets here


def load() -> None:
    """The entry point in the group `torch.backends`."""
    from torch import distributed  # noqa: PLC0415  torch is being imported; it has imported this already

    if distributed.is_available() and BACKEND.upper() not in distributed.Backend._plugins:
        distributed.Backend.register_backend(BACKEND, _make_process_group, devices=["cpu", "cuda"])
    try:
        worker = worker_environment()
    except UsageError:
        return  # `shoal.main` will report it; a plain script does not need these variables
    if worker is None:
        return
    from torch import multiprocessing  # noqa: PLC0415  only a worker pays for it

    if distributed.is_available():
        distributed.init_process_group = _own_rank_only(distributed.init_process_group, worker)
        groups = sys.modules["torch.distributed.distributed_c10d"]
        if hasattr(groups, MAKING_GROUPS):
            setattr(groups, MAKING_GROUPS, _remembered(getattr(groups, MAKING_GROUPS)))
        meeting = sys.modules["torch.distributed.rendezvous"]  # as an attribute of its package this is a function
        if hasattr(meeting, MAKING_STORES):
            setattr(meeting, MAKING_STORES, _on_loopback(getattr(meeting, MAKING_STORES)))
    # Child processes of a worker inherit the variables, but only the worker itself must not start workers.
    if is_worker_itself():
        for name in REPLACED:
            setattr(multiprocessing, name, _refusal(name, worker))
        file_hook.watch_early()
        lone_steps.watch(worker.worker, lambda text: _leave(worker, text, UsageError))


def _make_process_group(store: Store, rank: int, size: int, timeout: timedelta) -> ProcessGroup:
    from shoal.collectives.torch_backend.process_group import ShoalProcessGroup  # noqa: PLC0415  only its users pay for it

    return ShoalProcessGroup(store, rank, size, timeout)


def _own_rank_only(original: Callable[..., None], worker: WorkerEnvironment) -> Callable[..., None]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def init_process_group(*arguments: Any, **options: Any) -> None:
        given = signature.bind_partial(*arguments, **options).arguments.get("rank", -1)
        rank = torch_rank() if given is None or given < 0 else given
        # A worker itself may name any rank, but its child processes must not pose as other workers.
        if rank is not None and rank != worker.worker and not is_worker_itself():
            _leave(worker, _explain(f"distributed.init_process_group as rank {rank}", sys._getframe(1)))
        original(*arguments, **options)

    return init_process_group


def _remembered(original: Callable[..., object]) -> Callable[..., object]:
    """Wrap torch's function that makes a process group: a script that calls it takes part in the job."""

    @functools.wraps(original)
    def make_group(*arguments: Any, **options: Any) -> object:
        lone_steps.cease()
        return original(*arguments, **options)

    return make_group


def _on_loopback(original: Callable[..., Store]) -> Callable[..., Store]:
    """Wrap torch's function that makes a store: a store with a loopback address listens on loopback alone."""
    from torch._C._distributed_c10d import TCPStore  # noqa: PLC0415  torch is being imported; it has imported this

    signature = inspect.signature(original)
    if not set(STORE_PARAMETERS) <= set(signature.parameters):
        return original  # an unknown version of torch

    @functools.wraps(original)
    def make_store(*arguments: Any, **options: Any) -> Store:
        given = signature.bind(*arguments, **options)
        given.apply_defaults()
        host, port = given.arguments["hostname"], given.arguments["port"]
        family = _loopback_family(host)
        if family is None:
            return original(*arguments, **options)
        if spans_nodes():
            raise UsageError(texts.plain_torch_elsewhere(own_node()))
        keep_torch_on_loopback()  # all ranks are on this machine
        if given.arguments["rank"] != 0 or store_is_the_agents():
            return original(*arguments, **options)
        try:
            listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
        except OSError:  # this process probably has that store already, and torch handles that
            return original(*arguments, **options)
        return TCPStore(
            host_name=host,
            port=port,
            world_size=given.arguments["world_size"],
            is_master=True,
            timeout=given.arguments["timeout"],
            multi_tenant=True,
            master_listen_fd=listener.detach(),
            use_libuv=given.arguments["use_libuv"],
        )

    return make_store


def _loopback_family(host: str) -> socket.AddressFamily | None:
    """The address family of a name that stands for loopback addresses only; None for any other name."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return None  # torch will report what is wrong with it
    if not all(ipaddress.ip_address(place[0]).is_loopback for *_, place in found):
        return None
    return found[0][0]


def _refusal(name: str, worker: WorkerEnvironment) -> object:
    def refuse(*_arguments: object, **_options: object) -> NoReturn:
        text = _explain(f"multiprocessing.{name}", sys._getframe(1))
        if getattr(sys.modules.get("shoal.entry.shoal_main"), "is_worker", False):
            raise ScriptStartsProcesses(text)  # `shoal.main` reports it
        _leave(worker, text)

    refuse.__name__ = name
    return refuse


def _leave(worker: WorkerEnvironment, text: str, kind: type[ShoalError] = ScriptStartsProcesses) -> NoReturn:
    lone_steps.cease()
    try:
        _report(worker, text, kind)
    except Refused:
        pass  # another worker was faster, and the job has ended with the same message
    except (ShoalError, OSError, TokenFileError):
        sys.stderr.write(f"shoal: error: {text}\n")  # the coordinator cannot report it
    raise SystemExit(kind.exit_code)


def _explain(name: str, caller: FrameType) -> str:
    where = f"{caller.f_code.co_filename}, line {caller.f_lineno}"
    return texts.spawns_workers(where, name)


def _report(worker: WorkerEnvironment, text: str, kind: type[ShoalError]) -> None:
    from shoal.membership.client import CoordinatorClient  # noqa: PLC0415  not needed to import torch
    from shoal.wire.messages import PROTOCOL_VERSION, Join  # noqa: PLC0415

    join = Join(
        version=PROTOCOL_VERSION,
        worker=worker.worker,
        host=socket.gethostname(),
        process=os.getpid(),
        address=worker.coordinator,  # a placeholder: the job ends before a peer could connect
    )
    token = read_token(Path(worker.token_file))
    client = CoordinatorClient.connect(worker.coordinator, token, join, timeout=REPORT_TIMEOUT)
    try:
        client.failed(step=0, error=kind.__name__, text=text)
    finally:
        client.close()

"""Which parameter servers a job has: none, its own, or a name space in a running group.

Only jobs with servers import the server group's modules. Not here: what happens to the servers while the job runs
(`own_servers`, `borrowed_servers`).
"""

from __future__ import annotations

import contextlib
import hashlib
import socket
from pathlib import Path

from shoal.disk.job_token import read_group_token, token_file
from shoal.environment import parse_address
from shoal.job_config import JobConfig
from shoal.launching.processes.running import Processes
from shoal.launching.processes.specs import Job, public
from shoal.launching.servers.server_side import NoServers, ServerSide
from shoal.settings.parameter_server_settings import ParameterServerSettings
from shoal.settings.setting_checks import size_of
from shoal.values import Address
from shoal.wire.derived_keys import group_key, space_key

CHECK_SECONDS = 10.0  # for a group to answer before anything is started


def check_group(config: JobConfig) -> None:
    """Report a group that cannot be reached, or turns this job away, before anything is made or started."""
    if (address := config.of(ParameterServerSettings).server_group) is None:
        return
    from shoal.parameters.keeper.keeper_client import KeeperClient

    with KeeperClient(address, _group_token(config), CHECK_SECONDS) as client:
        client.status()


def space_name(run_dir: Path) -> str:
    """The job's name in a group: always the same for one run directory, never the same for two."""
    where = f"{socket.gethostname()}:{run_dir.resolve()}"
    return f"{run_dir.resolve().name[:80]}-{hashlib.blake2b(where.encode(errors='replace'), digest_size=4).hexdigest()}"


def group_key_file(config: JobConfig, token: str, stack: contextlib.ExitStack) -> Path | None:
    """For servers that the job starts itself: a private file with the key that they get instead of the job's token."""
    if not config.has(ParameterServerSettings) or config.of(ParameterServerSettings).server_group is not None:
        return None
    return stack.enter_context(token_file(group_key(token)))


def open_servers(job: Job, processes: Processes, token: str, stack: contextlib.ExitStack) -> tuple[ServerSide, str]:
    """The job's servers, which `stack` closes, and where workers find their keeper."""
    settings = job.config.of(ParameterServerSettings)
    if not job.config.has(ParameterServerSettings):
        return NoServers(), ""
    if settings.server_group is not None:
        return _borrowed(job, settings.server_group, token, stack), str(settings.server_group)
    from shoal.launching.servers.own_servers import OwnServers, OwnServersConfig
    from shoal.parameters.keeper.keeper import KeeperConfig
    from shoal.parameters.keeper.space_terms import SpaceTerms

    assert job.group_key_file is not None, "a job that starts servers has made one"
    host = parse_address(job.config.address, named="--address").host
    servers = OwnServers(
        OwnServersConfig(
            keeper=KeeperConfig(
                listen=Address(host, 0),
                token=group_key(token),
                expected=settings.server_count,
                replicas=settings.replicas,
                spaces=(SpaceTerms(job.space, space_key(token, job.space)),),
                silence_limit=settings.server_limit,
            ),
            token_file=job.group_key_file,
            logs=job.run_dir / "logs",
            memory=settings.server_memory,
            is_elsewhere=job.is_elsewhere,
            space=job.space,
        ),
        processes,
    )
    stack.callback(servers.close)
    return servers, str(public(servers.keeper.address))


def _borrowed(job: Job, keeper: Address, token: str, stack: contextlib.ExitStack) -> ServerSide:
    from shoal.launching.servers.borrowed_servers import BorrowedServers, BorrowedServersConfig
    from shoal.parameters.keeper.space_terms import SpaceTerms

    limit = job.config.of(ParameterServerSettings).server_quota
    quota = size_of(limit, named="--server-quota") if limit else 0
    space = SpaceTerms(job.space, space_key(token, job.space), quota)
    servers = BorrowedServers(BorrowedServersConfig(keeper, _group_token(job.config), space))
    stack.callback(servers.close)
    return servers


def _group_token(config: JobConfig) -> str:
    return read_group_token(Path(config.of(ParameterServerSettings).servers_token), named="--servers-token")

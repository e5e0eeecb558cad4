"""`--on ssh`: the hosts of a file."""

from __future__ import annotations

from pathlib import Path

from shoal.engines import texts
from shoal.engines.engine import Engine
from shoal.engines.nodes.agent_programs import seconds_to_start
from shoal.engines.nodes.node_engine import GATHER_SECONDS
from shoal.engines.nodes.script_files import NodeFolder
from shoal.engines.ssh.hosts_file import read_hosts
from shoal.engines.ssh.ssh_failures import nearest
from shoal.engines.ssh.ssh_provider import SshProvider, configured_hosts, find_ssh, real_name
from shoal.errors import UsageError
from shoal.job_config import JobConfig
from shoal.launching.elsewhere.gathering import Elsewhere, Folder, Nodes, gathered, with_reachable_address
from shoal.settings.engines.ssh_settings import SshSettings
from shoal.values import Address


def chosen(config: JobConfig, folder: Folder) -> Elsewhere:
    given = Path(config.of(SshSettings).hosts)
    hosts = read_hosts(given)
    slots, fewest = sum(host.slots for host in hosts), config.min_workers or config.workers
    if all(host.slots for host in hosts) and slots < fewest:
        raise UsageError(texts.too_few_slots(fewest, slots, len(hosts)))
    find_ssh()
    usual = "" if folder is None else str(folder.path)
    folders = {host.name: NodeFolder(host.folder or usual, host.is_shared) for host in hosts}

    def open_engine(bound: Address) -> Engine:
        seconds = GATHER_SECONDS + seconds_to_start(len(hosts))
        return gathered(SshProvider(hosts), Nodes(config, bound, folder, folders, fewest, seconds))

    addresses = {host.address: host for host in hosts}  # several hosts may have one
    config = config.having(SshSettings(hosts=str(given.absolute())))  # for whoever resumes the job

    def meant(host: str) -> str:
        return nearest(host, (*addresses, *configured_hosts()))

    return Elsewhere(with_reachable_address(config, lambda: map(real_name, addresses.values()), meant), open_engine)

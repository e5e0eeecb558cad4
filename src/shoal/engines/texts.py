"""What engines say to people, in one place: mending a word here breaks no test, for tests refer to these texts too."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

MOST_NAMED = 5  # files that a message names one by one


# Nodes


def no_torch(node: str, torch: str) -> str:
    wanted = f"torch=={torch}" if torch else "torch"
    return f"node {node} has no torch; install it there, for the Python that runs Shoal: pip install {wanted}"


def versions_differ(what: str, node: str, its: str, own: str) -> str:
    cure = (
        "use that Python there" if what == "Python" else f"install the same version: pip install {what.lower()}=={own}"
    )
    return f"node {node} has {what} {its}, this machine {own}; {cure}"


def folder_too_large(folder: str, files: int, megabytes: int) -> str:
    return (
        f"the script's folder {folder} has more than {files:,} Python files or {megabytes} MB of them, which is more "
        "than travels to nodes; move the script to a folder of its own, or put the folder where all nodes see it and "
        "say shared = true"
    )


def shared_folder_differs(node: str, folder: str, files: Collection[str]) -> str:
    return (
        f"the folder {folder} is said to be shared, but on node {node} it differs in {_some(files)}; is it the same "
        "file system, and up to date? Without shared = true the files travel to the node"
    )


def shared_folder_missing(node: str, folder: str) -> str:
    return (
        f"the folder {folder} is said to be shared, but is not there on node {node}; mount it, name the folder of that "
        "node (folder = ...), or leave shared out, so that the files travel to the node"
    )


def folder_unreadable(folder: str, why: object) -> str:
    return f"the script's folder {folder} cannot be read: {why}"


def copy_failed(node: str, why: str) -> str:
    return f"the script's files could not be brought to node {node}: {why}"


def no_nodes_left(seconds: float) -> str:
    return (
        f"no node has been there for {seconds:.0f} s, so that no worker can be started; look at why the nodes are "
        "gone, then go on from the newest checkpoint with --resume"
    )


def nodes_not_ready(nodes: Collection[str], seconds: float) -> str:
    return (
        f"nothing was heard from {_nodes(nodes)} within {seconds:.0f} s; see whether the machines are up, and whether "
        "they can reach this one at the address that --address says"
    )


def too_few_slots(workers: int, slots: int, nodes: int) -> str:
    hosts = "one node" if nodes == 1 else f"{nodes} nodes"
    return (
        f"{workers} workers need {workers} slots, and {hosts} {'has' if nodes == 1 else 'have'} {slots}; take "
        f"-n {slots}, or give the nodes more slots"
    )


def too_few_came(workers: int, slots: int, seconds: float, more_room: str) -> str:
    came = f"{slots} came" if slots else "none came"
    fewer = f"take -n {slots}, or " if slots else ""
    return f"{workers} workers need {workers} slots, and within {seconds:.0f} s {came}; {fewer}{more_room}"


def brought_unreadable(path: Path, why: object) -> str:
    return f"the private file {path} cannot be brought to a node: {why}"


def cannot_listen(address: object, why: object) -> str:
    return f"cannot listen for nodes at {address}: {why}; --address names an address of this machine"


# Lines while a job runs


def node_gone(node: str, why: str) -> str:
    return f"node {node} is gone: {why}"


def node_came(node: str, slots: int) -> str:
    return f"node {node} is there, with {slots} slot{'s' * (slots != 1)}"


def nodes_leave(node: str) -> str:
    return f"node {node} got SIGTERM: the nodes are taken away soon, and the job stops with a checkpoint"


def process_waits(process: str, why: str) -> str:
    return f"{process} waits for a place: {why}"


# Reasons, and what an agent says before it ends


def its_node_is_gone(node: str, why: str) -> str:
    return f"its node {node} is gone: {why}"


NO_ANSWER = "its agent does not answer"
NO_ANSWER_FROM_MACHINE = "its machine does not answer"
AGENT_CLOSED = "the connection to its agent closed"


def agent_has_no_way(node: str, address: object, why: object) -> str:
    return f"the agent of node {node} cannot reach the launcher at {address}: {why}"


NO_ERRAND = "the agent was told nothing on its standard input; a provider starts it"


def _nodes(nodes: Collection[str]) -> str:
    return f"node {next(iter(nodes))}" if len(nodes) == 1 else f"the nodes {_some(nodes)}"


def _some(names: Collection[str]) -> str:
    named = sorted(names)
    more = len(named) - MOST_NAMED
    return ", ".join(named[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


# Hosts of ssh


def hosts_file_missing(path: Path) -> str:
    return (
        f"the hosts file {path} does not exist; --hosts names a TOML file with a table for each host, such as [node1]"
    )


def hosts_file_unreadable(path: Path, why: object) -> str:
    return f"the hosts file {path} cannot be read: {why}"


def hosts_file_is_no_toml(path: Path, why: object) -> str:
    return f"the hosts file {path} is no TOML: {why}"


def hosts_file_size(path: Path, hosts: int, most: int) -> str:
    return (
        f"the hosts file {path} names {hosts} hosts; it should name from 1 to {most}, each as a table such as [node1]"
    )


def no_host_table(path: Path, name: str) -> str:
    return f"{name} in the hosts file {path} is no table; write [{name}] on a line of its own, and its values below"


def unknown_host_key(path: Path, host: str, key: str, near: str, known: Collection[str]) -> str:
    hint = f"did you mean {near!r}?" if near else f"there is {', '.join(known)}"
    return f"host {host} in {path} has no setting {key!r}; {hint}"


def wrong_host_value(path: Path, host: str, key: str, what: str) -> str:
    return f"host {host} in {path}: {key}: {what}"


def bad_host_address(path: Path, host: str, address: str) -> str:
    return (
        f"host {host} in {path} has the address {address!r}; it should be what ssh is called with, such as me@10.0.0.7"
    )


NO_SSH = "--on ssh needs the program ssh, which is not on the PATH; install OpenSSH's client"


def host_unknown(host: str, address: str, said: str, near: str = "") -> str:
    cure = f"did you mean {near}? Otherwise set" if near else "set"
    return (
        f"ssh does not know the host {address} of node {host}; {cure} its address in the hosts file, or name it in "
        f"your ssh configuration; ssh said: {said}"
    )


def host_unreached(host: str, address: str, said: str) -> str:
    return f"ssh cannot reach {address} of node {host}; try `ssh {address} true`; ssh said: {said}"


def no_login(host: str, address: str, said: str) -> str:
    return (
        f"ssh cannot log in to {address} of node {host} without asking; `ssh {address} true` must work without a "
        f"password (ssh-copy-id {address}); ssh said: {said}"
    )


def no_python_there(host: str, python: str, said: str) -> str:
    return f"node {host} cannot run {python}; set python of that host in the hosts file; its shell said: {said}"


def no_shoal_there(host: str, python: str) -> str:
    return (
        f"node {host} has no Shoal, or an older one, for {python}; install the same Shoal there, or set python of that "
        "host in the hosts file"
    )


def program_not_started(node: str, program: str, why: object) -> str:
    return (
        f"{program} could not be started on this machine for node {node}: {why}; look at the limits of open files and "
        "processes here (ulimit -n, ulimit -u)"
    )


def no_way_back(said: str) -> str:
    return f"{said}; pass --address HOST:PORT with an address of this machine that the hosts reach"


def agent_ended(host: str, code: int, said: str) -> str:
    return f"the agent on node {host} ended with code {code}; it said: {said}"


def no_address_for(host: str, why: object, near: str = "") -> str:
    cure = f"did you mean {near}? Otherwise pass" if near else "pass"
    return (
        f"no address of this machine was found that leads to host {host}: {why}; {cure} --address HOST:0 with an "
        "address of this machine that the hosts reach"
    )


AGENT_ENDED = "its agent ended"


def agent_failed(code: int, said: str) -> str:
    return f"its agent ended with code {code}; it said: {said}"


def ssh_broke(said: str) -> str:
    return f"the ssh connection to it ended; ssh said: {said}"


# Slurm


def no_slurm_program(program: str) -> str:
    return (
        f"--on slurm needs Slurm's program {program}, which is not on the PATH; log in to a machine of the cluster, or "
        "load its module"
    )


NO_ALLOCATION = (
    "--on slurm needs an allocation, and this process is in none: pass --nodes 2 and --time 1h to ask for one, or "
    "start the job inside salloc or sbatch"
)


def nodes_in_allocation(nodes: str, job: str) -> str:
    return (
        f"--nodes {nodes} asks for an allocation, and this process is in one already (job {job}): leave out --nodes, "
        "--time and --slurm, or start the job outside of it"
    )


def odd_allocation(job: str, nodes: int, counts: int) -> str:
    return (
        f"the variables of Slurm's job {job} do not fit together: {nodes} nodes, and numbers of tasks or cores for "
        f"{counts}; start the job inside salloc or sbatch, with the variables that they set"
    )


def slurm_does_not_answer(program: str, said: str) -> str:
    return f"Slurm's {program} failed; look whether the cluster is up (sinfo); {program} said: {said}"


def allocation_refused(said: str) -> str:
    return f"Slurm gives no allocation; change --nodes, --time, -n or --slurm; salloc said: {said}"


def waiting_for_slurm(fewest: int, most: int) -> str:
    nodes = f"{most} node{'s' * (most != 1)}" if fewest == most else f"{fewest} to {most} nodes"
    return f"waiting for Slurm to give {nodes}"


def goes_back_to_queue(job: str) -> str:
    return f"Slurm takes the nodes of job {job} away for another one; the job goes back into Slurm's queue"


def allocation_over(job: str, said: str) -> str:
    return f"Slurm's job {job} has ended; ask for another allocation, and go on with --resume; srun said: {said}"


def no_step(node: str, said: str) -> str:
    return f"Slurm started nothing on node {node}; look at it with `sinfo -n {node}`; srun said: {said}"


def no_python_in_step(node: str, python: str, said: str) -> str:
    return (
        f"node {node} cannot run {python}; put this Python where all nodes find it under the same path; srun said: "
        f"{said}"
    )


def no_shoal_in_step(node: str, python: str) -> str:
    return f"node {node} has no Shoal, or an older one, for {python}; install the same Shoal there"


def srun_ended(said: str) -> str:
    return f"its step of Slurm ended; srun said: {said}"


# Dask

NO_DASK_CLIENT = (
    "--on dask needs a Dask cluster: make a distributed.Client first, or set DASK_SCHEDULER_ADDRESS, such as "
    "tcp://10.0.0.7:8786"
)
WAITING_CLIENT = (
    "the Dask client is asynchronous, and a job waits for its end: make one without asynchronous=True, outside of "
    "coroutines and of Dask's own tasks"
)


WAITING_FOR_DASK = "waiting for free workers of Dask"


def reaching_dask(address: object) -> str:
    return f"reaching the Dask scheduler at {address}"


def dask_unreachable(address: str, why: str) -> str:
    return f"the Dask scheduler at {address} does not answer; see whether the cluster is up; Dask said: {why}"


def dask_too_small(workers: int, threads: int, dask_workers: int) -> str:
    found = "no worker" if not dask_workers else f"{dask_workers} worker{'s' * (dask_workers != 1)} with {threads}"
    return (
        f"{workers} workers need {workers} threads of Dask workers, and the cluster has {found}; make it larger, such "
        "as with cluster.scale, or take fewer workers"
    )


def dask_busy(workers: int, free: int, busy: int) -> str:
    return (
        f"{workers} workers need {workers} threads of Dask workers, and {free} {'is' if free == 1 else 'are'} free: "
        f"{busy} Dask worker{'s are' if busy != 1 else ' is'} busy with other tasks; wait for those, or make the "
        "cluster larger"
    )


def no_shoal_on_dask(name: str) -> str:
    return f"Dask worker {name} has no Shoal, or an older one; install the same Shoal in the Python that runs it"


def no_dask_task(name: str, said: str) -> str:
    return f"Dask did not run the agent on its worker {name}; look at that worker's log; Dask said: {said}"


def dask_worker_left(address: str) -> str:
    return f"Dask has lost or stopped its worker at {address}"


def dask_task_ended(said: str) -> str:
    return f"Dask ended the task of its agent; Dask said: {said}"

"""A real Slurm cluster: a head machine with slurmctld and machines with slurmd, in namespaces of this one. Needs root.

Each machine has a network, a host name and process numbers of its own, so that one that is lost takes all its processes
with it. Everything else, file systems too, is shared. Nothing outlives `close`: the first process of a machine is
killed, and the kernel ends all others. Needs Debian's packages slurm-wlm and munge. Not here: the network (`network`).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from support.network import Network

HEAD = "head"
HEAD_NUMBER = 0
PATIENCE = 60.0  # seconds; generous, since the machine may be busy
# The first process of a machine: it waits for orphans, which slurmd leaves, and its end is the end of all others.
BOOT = 'hostname "$1"; shift; "$@" & while :; do wait; sleep 1; done'
WITH_US = ("setpriv", "--pdeathsig", "KILL")  # what follows is killed if this process is
ENTER = 'hostname "$1"; shift; exec "$@"'
NO_BINDING = "TaskPlugin=task/none"
BINDING = "TaskPlugin=task/affinity\nTaskPluginParam=Cores"  # each task to as many cores as it has asked for

CONFIGURATION = """
ClusterName=test
SlurmctldHost={head}({head_address})
SlurmctldPort=6817
SlurmdPort=6818
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
{binding}
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SwitchType=switch/none
ReturnToService=2
SlurmctldTimeout=30
SlurmdTimeout={slurmd_timeout}
InactiveLimit=0
KillWait={kill_wait}
WaitTime=0
SchedulerParameters=sched_interval=1,batch_sched_delay=0,sched_min_interval=0,bf_interval=1
SlurmdParameters=config_overrides
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
{nodes}
PartitionName=usual Nodes=ALL Default=YES MaxTime=INFINITE PriorityTier=1 GraceTime={kill_wait} State=UP
PartitionName=urgent Nodes=ALL MaxTime=INFINITE PriorityTier=10 PreemptMode=off State=UP
"""


def is_installed() -> bool:
    return os.geteuid() == 0 and all(shutil.which(name) for name in ("slurmctld", "slurmd", "munged"))


class SlurmCluster:
    """`size` compute machines, called node1, node2..., each with `cores` cores, whatever this machine has.

    With `binds`, Slurm binds tasks to cores; then a machine must not have more cores than this one.
    """

    def __init__(
        self, size: int = 2, *, cores: int = 4, kill_wait: int = 20, slurmd_timeout: int = 10, binds: bool = False
    ) -> None:
        self.nodes = [f"node{number}" for number in range(1, size + 1)]
        self.folder = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))  # the name must be short: sockets are there
        self.folder.chmod(0o755)  # munged wants that everybody reaches its socket
        self._first: dict[str, subprocess.Popen[bytes]] = {}  # by machine or service: its first process
        self._network: Network | None = None
        try:
            self._network = Network(size + 1)
            self._configure(cores, kill_wait, slurmd_timeout, BINDING if binds else NO_BINDING)
            self._start_munged()
            self._boot(HEAD, "slurmctld", "-D")
            for node in self.nodes:
                self.boot(node)
            self.wait_until_idle()
        except BaseException:
            self.close()
            raise

    @property
    def network(self) -> Network:
        assert self._network is not None
        return self._network

    @property
    def variables(self) -> dict[str, str]:
        """What a process needs to find the cluster."""
        return {"SLURM_CONF": str(self.folder / "slurm.conf")}

    def host(self, node: str) -> str:
        """The address of a machine."""
        return self.network.host(self.number(node))

    def number(self, node: str) -> int:
        """Of a machine in `network`."""
        return HEAD_NUMBER if node == HEAD else 1 + self.nodes.index(node)

    def on_head(self, *command: str | Path) -> list[str]:
        """A command that runs on the head machine."""
        return [*self._entered(HEAD), "unshare", "--uts", "sh", "-c", ENTER, "sh", HEAD, *map(str, command)]

    def run(self, *command: str | Path, patience: float = PATIENCE) -> subprocess.CompletedProcess[str]:
        """Run a command to its end on the head machine."""
        variables = {**os.environ, **self.variables}
        return subprocess.run(
            self.on_head(*command),
            env=variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=patience,
            check=False,
        )

    @contextlib.contextmanager
    def started(self, folder: Path, *command: str | Path, **variables: str) -> Iterator[subprocess.Popen[str]]:
        """A command that runs in `folder` on the head machine, with its pipes as text. Killed if it still runs."""
        (folder / "runtime").mkdir(exist_ok=True)
        process = subprocess.Popen(
            self.on_head(*command),
            cwd=folder,
            env={**os.environ, **self.variables, "XDG_RUNTIME_DIR": str(folder / "runtime"), **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
            for stream in (process.stdout, process.stderr):
                assert stream is not None
                stream.close()

    def processes(self, node: str) -> list[psutil.Process]:
        """All that run on a compute machine, besides its first process and slurmd."""
        found = psutil.Process(self._first[node].pid).children(recursive=True)
        return [process for process in found[1:] if process.name() not in ("slurmd", "sh", "sleep")]

    def states(self) -> dict[str, str]:
        """By node, as `sinfo` shows them, such as idle or down*."""
        told = self.run("sinfo", "-h", "-N", "-p", "usual", "-o", "%N %T").stdout
        return dict(line.split() for line in told.splitlines())

    def jobs(self) -> list[str]:
        """One for each job that is not over: its number and state."""
        return self.run("squeue", "-h", "-o", "%i %T").stdout.splitlines()

    def wait_for_jobs(self, *states: str) -> None:
        """Until there are jobs in these states, and no others."""
        limit = time.monotonic() + PATIENCE
        while sorted(job.split()[1] for job in self.jobs()) != sorted(states):
            assert time.monotonic() < limit, f"{self.jobs()}: {self.logs()}"
            time.sleep(0.1)

    def cancel_all(self) -> None:
        """End every job."""
        self.run("scancel", "--user=root")

    def wait_until_idle(self) -> None:
        """No job is left, and every node takes the next one."""
        limit = time.monotonic() + PATIENCE
        while self.jobs() or self.states() != dict.fromkeys(self.nodes, "idle"):
            assert time.monotonic() < limit, f"{self.jobs()} {self.states()}: {self.logs()}"
            time.sleep(0.1)

    def boot(self, node: str) -> None:
        """Start a machine; one that was lost comes back."""
        self._boot(node, "slurmd", "-D", "-N", node)

    def lose(self, node: str) -> None:
        """End a machine's slurmd and all its other processes at once."""
        self._kill(self._first.pop(node))

    def logs(self) -> str:
        """The last lines of every service."""
        return "".join(
            f"\n== {path.name}\n" + "\n".join(path.read_text(errors="replace").splitlines()[-15:])
            for path in sorted(self.folder.glob("*.log"))
        )

    def close(self) -> None:
        """Safe to call twice."""
        for first in self._first.values():
            self._kill(first)
        self._first.clear()
        if self._network is not None:
            self._network.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _kill(self, first: subprocess.Popen[bytes]) -> None:
        first.kill()
        first.wait()

    def _configure(self, cores: int, kill_wait: int, slurmd_timeout: int, binding: str) -> None:
        nodes = [
            f"NodeName={node} NodeAddr={self.host(node)} CPUs={cores} Sockets=1 CoresPerSocket={cores} "
            f"ThreadsPerCore=1 RealMemory=1000 State=UNKNOWN"
            for node in self.nodes
        ]
        for folder in ("state", "munge", *(f"spool-{node}" for node in self.nodes)):
            (self.folder / folder).mkdir(mode=0o755)
        text = CONFIGURATION.format(
            head=HEAD,
            head_address=self.host(HEAD),
            folder=self.folder,
            nodes="\n".join(nodes),
            kill_wait=kill_wait,
            slurmd_timeout=slurmd_timeout,
            binding=binding,
        )
        (self.folder / "slurm.conf").write_text(text)
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")  # which needs none as long as none is used

    def _start_munged(self) -> None:
        """One for all machines: its socket is on the file system that they share."""
        key = self.folder / "munge/key"
        key.touch(mode=0o400)
        key.write_bytes(os.urandom(128))
        paths = {
            "key-file": key,
            "socket": self.folder / "munge.socket",
            "pid-file": self.folder / "munge/pid",
            "log-file": self.folder / "munge.log",
            "seed-file": self.folder / "munge/seed",
        }
        # /tmp is writable by everybody, which munged only warns of if it is forced.
        options = [f"--{name}={path}" for name, path in paths.items()]
        self._first["munged"] = subprocess.Popen(
            [*WITH_US, "munged", "--foreground", "--force", *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        limit = time.monotonic() + PATIENCE
        while not paths["socket"].exists():
            assert self._first["munged"].poll() is None, self.logs()
            assert time.monotonic() < limit, self.logs()
            time.sleep(0.05)

    def _entered(self, machine: str) -> tuple[str, ...]:
        return ("ip", "netns", "exec", self.network.namespaces[self.number(machine)])

    def _boot(self, machine: str, *service: str) -> None:
        isolated = ("unshare", "--uts", "--pid", "--mount", "--fork", "--kill-child", "--mount-proc")
        with (self.folder / f"{machine}-console.log").open("ab") as console:
            self._first[machine] = subprocess.Popen(
                [*WITH_US, *self._entered(machine), *isolated, "sh", "-c", BOOT, "sh", machine, *service],
                env={**os.environ, **self.variables},
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                start_new_session=True,
            )


@contextlib.contextmanager
def slurm_cluster(size: int = 2, *, cores: int = 4, kill_wait: int = 20, binds: bool = False) -> Iterator[SlurmCluster]:
    with contextlib.closing(SlurmCluster(size, cores=cores, kill_wait=kill_wait, binds=binds)) as cluster:
        yield cluster

"""How `bench_engines.py` runs a job under each engine: a real one on this machine. Adding an engine: a function, a row.

Each function starts the engine and yields a `Way`. Needs root, as the tests of engines do.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from support.dask_cluster import dask_cluster
from support.ray_cluster import ray_cluster
from support.slurm_cluster import slurm_cluster
from support.spark_cluster import EXECUTOR, cluster_properties, spark_variables
from support.ssh_server import Place, ssh_hosts

SHOAL = (sys.executable, "-m", "shoal", "run")


@dataclass(frozen=True)
class Way:
    """How to start `shoal run`: options of the job, then the script, are appended."""

    alone: tuple[str, ...]  # a job whose workers share one node, so that it is the engine that is measured, not a link
    spread: tuple[str, ...] = ()  # one whose workers are on two nodes with room for more
    variables: Mapping[str, str] = field(default_factory=dict)
    lose: Callable[[int], None] | None = None  # ends the node that took the second worker, whose process is given
    mend: Callable[[], None] | None = None  # brings it back


LOCAL = Way(alone=SHOAL, spread=SHOAL)


@contextlib.contextmanager
def ssh(folder: Path) -> Iterator[Way]:
    """Two hosts that are this machine, with an sshd each."""
    (folder / "one.toml").write_text("[a]\nslots = 8\n", encoding="utf-8")
    (folder / "two.toml").write_text("[a]\nslots = 4\n[b]\nslots = 4\n", encoding="utf-8")
    with contextlib.ExitStack() as stack:
        made = [stack.enter_context(ssh_hosts(folder / "ssh", {"a": Place(), "b": Place()}))]

        def mend() -> None:
            stack.pop_all().close()
            shutil.rmtree(folder / "ssh")
            made[0] = stack.enter_context(ssh_hosts(folder / "ssh", {"a": Place(), "b": Place()}))

        yield Way(
            alone=(*SHOAL, "--on", "ssh", "--hosts", str(folder / "one.toml")),
            spread=(*SHOAL, "--on", "ssh", "--hosts", str(folder / "two.toml")),
            variables=made[0].variables,
            lose=lambda _: made[0].kill("b"),
            mend=mend,
        )


@contextlib.contextmanager
def slurm(_folder: Path) -> Iterator[Way]:
    """Two nodes that are namespaces of this machine, with a slurmd each. The job runs in an allocation of its own."""
    with slurm_cluster() as cluster:

        def mend() -> None:
            cluster.boot("node2")
            cluster.wait_until_idle()

        def command(nodes: int) -> tuple[str, ...]:
            asked = ("salloc", f"--nodes={nodes}", "--exclusive", "--no-kill", "--quiet")
            return (*cluster.on_head(*asked), *SHOAL, "--on", "slurm")

        yield Way(
            alone=command(1),
            spread=command(2),
            variables=cluster.variables,
            lose=lambda _: cluster.lose("node2"),
            mend=mend,
        )


@contextlib.contextmanager
def dask(folder: Path) -> Iterator[Way]:
    """Three workers of Dask with a slot each, all on this machine. Their nannies start those again that are killed."""
    (folder / "dask").mkdir()
    with dask_cluster(folder / "dask", workers=3) as cluster:

        def lose(pid: int) -> None:
            nodes = cluster.workers().values()
            next(process for process in psutil.Process(pid).parents() if process.pid in nodes).kill()

        command = (*SHOAL, "--on", "dask")
        yield Way(alone=command, spread=command, variables=cluster.variables, lose=lose)


@contextlib.contextmanager
def spark(folder: Path) -> Iterator[Way]:
    """Two executors with a core each. They start and end with the job: nothing of Spark is beside local ones."""
    (folder / "spark").mkdir()

    def lose(pid: int) -> None:
        next(process for process in psutil.Process(pid).parents() if EXECUTOR in process.cmdline()).kill()

    command = (*SHOAL, "--on", "spark", "--spark", cluster_properties())
    yield Way(alone=command, spread=command, variables=spark_variables(folder / "spark"), lose=lose)


@contextlib.contextmanager
def ray(_folder: Path) -> Iterator[Way]:
    """Three nodes with a CPU each besides a head without any, all on this machine. One that is lost stays so."""
    with ray_cluster(0, 1, 1, 1) as cluster:

        def lose(pid: int) -> None:
            next(process for process in psutil.Process(pid).parents() if process.name() == "raylet").kill()

        def mend() -> None:
            cluster.add(1)

        command = (*SHOAL, "--on", "ray")
        yield Way(alone=command, spread=command, variables=cluster.variables, lose=lose, mend=mend)


ENGINES: Mapping[str, Callable[[Path], AbstractContextManager[Way]]] = {
    "ssh": ssh,
    "slurm": slurm,
    "ray": ray,
    "dask": dask,
    "spark": spark,
}


@contextlib.contextmanager
def ssh_machines(folder: Path, count: int) -> Iterator[Way]:
    """So many hosts with one slot each, which are this machine: all have the same sshd."""
    tables = "".join(f'[host{number}]\naddress = "a"\nslots = 1\n' for number in range(count))
    (folder / "many.toml").write_text(tables, encoding="utf-8")
    with ssh_hosts(folder / "many", {"a": Place()}) as hosts:
        yield Way(alone=(*SHOAL, "--on", "ssh", "--hosts", str(folder / "many.toml")), variables=hosts.variables)

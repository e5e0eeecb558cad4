"""Where the engines of the contract's suite run: machines and clusters, each made once for one engine after another.

A place opens its engine in this process, and says how a program of its own opens one there. Over the clusters of other
programs engines are opened as `shoal run --on` opens them. Not here: driving an engine (`engines`).
"""

from __future__ import annotations

import contextlib
import importlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest

from shoal.engines.engine import Engine
from shoal.engines.local import LocalEngine
from shoal.job_config import from_toml
from shoal.values import Address
from support import ray_cluster, slurm_cluster, spark_cluster, ssh_server
from support.dask_cluster import dask_cluster
from support.namespace_engine import NamespaceEngine, NamespaceEngineConfig
from support.network import Network
from support.nodes import TestNode, gathered

PATIENCE = 60.0  # seconds; generous, since the machine may be busy
HIDDEN = "hidden"
HOST = "127.0.0.1"
MOST = 3  # workers that an engine has room for at most
# Python processes of Spark's executors end with their tasks, so that a test leaves none.
SPARK = f"{spark_cluster.cluster_properties(2, cores=2)} python.worker.reuse=false"


@dataclass(frozen=True)
class EnginePlace:
    open: Callable[[int], Engine]  # gets the number of workers that the engine has room for, `MOST` at most
    program: str  # the expression that opens one for a worker, in a program which has imported everything that is here
    entered: tuple[str, ...] = ()  # command that has such a program run in the place
    left: Callable[[], list[str]] = list  # what engines have left there, besides processes
    hidden: Path = Path()  # a folder of the launcher's machine, which other machines do not have


@contextlib.contextmanager
def engine_place(kind: str, folder: Path) -> Iterator[EnginePlace]:
    """Of a kind that is below. `folder` is for its files."""
    (folder / HIDDEN).mkdir()
    with PLACES[kind](folder) as place:
        yield replace(place, hidden=folder / HIDDEN)
        limit = time.monotonic() + PATIENCE
        while left := place.left():
            assert time.monotonic() < limit, left
            time.sleep(0.1)


def opened(settings: str, workers: int = 1, host: str = HOST) -> Engine:
    """The engine of a job with these settings, as a file has them. Nodes reach the launcher at `host`."""
    config = from_toml(f'workers = {workers}\ncheckpoint-every = "never"\n{settings}', origin="test")
    module = importlib.import_module(f"shoal.launching.elsewhere.{config.on}_jobs")
    engine: Engine = module.chosen(config, None).open_engine(Address(host, 0))
    return engine


@contextlib.contextmanager
def _local(_: Path) -> Iterator[EnginePlace]:
    yield EnginePlace(lambda _: LocalEngine(), "LocalEngine()")


@contextlib.contextmanager
def _namespaces(folder: Path) -> Iterator[EnginePlace]:
    with Network(2) as network:
        hidden = folder / HIDDEN
        config = NamespaceEngineConfig(network.namespaces, hidden=(hidden,))
        program = f"NamespaceEngine(NamespaceEngineConfig({network.namespaces}, hidden=(Path({str(hidden)!r}),)))"
        yield EnginePlace(lambda _: NamespaceEngine(config), program)


@contextlib.contextmanager
def _nodes(_: Path) -> Iterator[EnginePlace]:
    yield EnginePlace(lambda _: gathered([TestNode(), TestNode()]), "gathered([TestNode(), TestNode()])")


@contextlib.contextmanager
def _nodes_in_namespaces(folder: Path) -> Iterator[EnginePlace]:
    with Network(3) as network:
        hidden = (folder / HIDDEN, Path("/dev/shm"))
        nodes = [TestNode(namespace=name, hidden=hidden) for name in network.namespaces[1:]]

        def open_engine(_: int) -> Engine:
            with network.inside(0):
                return gathered(nodes, network.host(0))

        there = ", ".join(f"TestNode(namespace={name!r})" for name in network.namespaces[1:])
        program = f"gathered([{there}], {network.host(0)!r})"
        yield EnginePlace(open_engine, program, ("ip", "netns", "exec", network.namespaces[0]))


@contextlib.contextmanager
def _ssh(folder: Path) -> Iterator[EnginePlace]:
    file = folder / "hosts.toml"
    file.write_text("[a]\nslots = 4\n[b]\nslots = 4\n")
    place = ssh_server.Place(hidden=(folder / HIDDEN,))
    with ssh_server.ssh_hosts(folder / "ssh", {"a": place, "b": place}) as hosts, _variables(hosts.variables):
        settings = f'on = "ssh"\nhosts = "{file}"'
        yield EnginePlace(partial(opened, settings), f"opened({settings!r})", left=lambda: hosts.left)


@contextlib.contextmanager
def _slurm(_: Path) -> Iterator[EnginePlace]:
    with slurm_cluster.slurm_cluster(2) as cluster, _variables(cluster.variables):
        host = cluster.host(slurm_cluster.HEAD)
        settings = 'on = "slurm"\nnodes = "2"'

        def open_engine(workers: int) -> Engine:
            with cluster.network.inside(slurm_cluster.HEAD_NUMBER):
                return opened(settings, workers, host)

        yield EnginePlace(open_engine, f"opened({settings!r}, 1, {host!r})", tuple(cluster.on_head()), cluster.jobs)


@contextlib.contextmanager
def _ray(_: Path) -> Iterator[EnginePlace]:
    with ray_cluster.ray_cluster(2, 2) as cluster, _variables(cluster.variables):
        settings = 'on = "ray"'

        def left() -> list[str]:
            taken = 4 - cluster.free()
            return cluster.left + ([f"{taken} CPUs"] if taken else [])

        yield EnginePlace(partial(opened, settings), f"opened({settings!r})", left=left)


@contextlib.contextmanager
def _spark(folder: Path) -> Iterator[EnginePlace]:
    """One application for the engines of this process; a program has its own, with one executor."""
    from shoal.engines.spark.own_application import OwnApplication

    settings = f'on = "spark"\nspark = "{SPARK}"'
    smaller = f'on = "spark"\nspark = "{spark_cluster.cluster_properties(1)}"'
    properties = {f"spark.{name}": value for name, _, value in (word.partition("=") for word in SPARK.split())}
    with _variables(spark_cluster.spark_variables(folder)), contextlib.closing(OwnApplication(properties)):
        opened(settings, MOST).close()  # each executor starts a process for Python, which stays
        yield EnginePlace(partial(opened, settings), f"opened({smaller!r})")


@contextlib.contextmanager
def _dask(folder: Path) -> Iterator[EnginePlace]:
    """One client for the engines of this process; a program has its own."""
    from distributed import Client

    settings = 'on = "dask"'
    with dask_cluster(folder, threads=2) as cluster, _variables(cluster.variables), Client(cluster.address):
        yield EnginePlace(partial(opened, settings), f"opened({settings!r})")


@contextlib.contextmanager
def _variables(added: dict[str, str]) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in added.items():
            patch.setenv(name, value)
        yield


PLACES: dict[str, Callable[[Path], contextlib.AbstractContextManager[EnginePlace]]] = {
    "local": _local,
    "namespaces": _namespaces,
    "nodes": _nodes,
    "nodes in namespaces": _nodes_in_namespaces,
    "ssh": _ssh,
    "slurm": _slurm,
    "ray": _ray,
    "spark": _spark,
    "dask": _dask,
}


def place_parameters() -> list[object]:
    """All kinds, for pytest. Those that need programs of others are long."""
    no_root = pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
    long = [pytest.mark.long, pytest.mark.timeout(300)]

    def needs(what: str, *, is_there: bool) -> list[pytest.MarkDecorator]:
        return [*long, pytest.mark.skipif(not is_there, reason=f"needs {what}")]

    marks = {
        "namespaces": [no_root],
        "nodes in namespaces": [no_root],
        "ssh": needs("root, and OpenSSH's client and server", is_there=not ssh_server.IS_MISSING),
        "slurm": needs("root, slurm-wlm and munge", is_there=slurm_cluster.is_installed()),
        "ray": needs("the package ray", is_there=ray_cluster.is_installed()),
        "spark": needs("pyspark and Java", is_there=spark_cluster.is_installed()),
        "dask": long,
    }
    return [pytest.param(kind, marks=marks.get(kind, [])) for kind in PLACES]

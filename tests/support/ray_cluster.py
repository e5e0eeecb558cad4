"""A real Ray cluster of several nodes on this machine, on loopback. It runs in a process of its own.

That process is no child of the test's, since Ray keeps idle workers as long as it likes. It ends, with all its nodes,
when its standard input does. Without a dashboard and with small object stores; nothing is reported to anybody. Ray
takes 127.0.0.1 for "this machine's outer address", so nodes have 127.0.0.2. Run as a script, this is that process.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

HOST = "127.0.0.2"
STORE = 80 * 1024 * 1024  # bytes; Ray takes no smaller one
NODE = {"object_store_memory": STORE, "node_ip_address": HOST}
# A node that was killed is noticed after 5 s instead of 15; one that is slow on a busy machine is not given up.
FAST = {"health_check_period_ms": 1000, "health_check_failure_threshold": 5, "health_check_timeout_ms": 30000}
PATIENCE = 60.0  # seconds; generous, since the machine may be busy


def is_installed() -> bool:
    return importlib.util.find_spec("ray") is not None


class RayCluster:
    """The test's end of the cluster's process."""

    def __init__(self, nodes: tuple[int, ...]) -> None:
        """A node for each of these numbers of CPUs."""
        self.folder = Path(tempfile.mkdtemp(prefix="ray-"))  # short, since sockets have their paths in it
        self._runtime = self.folder / "runtime"  # of agents
        self._runtime.mkdir()
        variables = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "XDG_RUNTIME_DIR": str(self._runtime)}
        started = subprocess.Popen(
            ["setsid", "--fork", sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd="/",
            env={**variables, "RAY_TMPDIR": str(self.folder)},
        )
        started.wait()
        assert started.stdin is not None
        assert started.stdout is not None
        self._input, self._output = started.stdin, started.stdout
        self._process: int = self._read()
        self.nodes = [self.add(cpus) for cpus in nodes]  # Ray's ids, as jobs name nodes
        self.address: str = self._ask("address")

    @property
    def variables(self) -> dict[str, str]:
        return {"RAY_ADDRESS": self.address, "RAY_TMPDIR": str(self.folder)}

    def add(self, cpus: int) -> str:
        return str(self._ask("add", cpus))[:8]

    def kill(self, node: str) -> None:
        """All processes of a node are gone at once, as if its machine had lost power."""
        self._ask("kill", node)

    @property
    def left(self) -> list[str]:
        """What agents have left on nodes: files, and processes that are not Ray's."""
        found = [command for one in self.processes() if "shoal" in (command := _command(one))]
        return found + [str(path) for path in self._runtime.iterdir()]

    def free(self) -> float:
        """CPUs that nobody has."""
        return float(self._ask("free"))

    def processes(self) -> list[psutil.Process]:
        """All that run, Ray's own too."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(self._process).children(recursive=True)
        return []

    def close(self) -> None:
        mine = [psutil.Process(self._process), *self.processes()]
        self._input.close()
        _, alive = psutil.wait_procs(mine, timeout=PATIENCE)
        for process in alive:
            process.kill()
        self._output.close()
        shutil.rmtree(self.folder, ignore_errors=True)
        assert not alive, alive

    def _ask(self, *question: object) -> Any:
        self._input.write(json.dumps(question) + "\n")
        self._input.flush()
        return self._read()

    def _read(self) -> Any:
        line = self._output.readline()
        assert line, "the cluster's process has ended"
        return json.loads(line)


@contextlib.contextmanager
def ray_cluster(*nodes: int) -> Iterator[RayCluster]:
    cluster = RayCluster(nodes)
    try:
        yield cluster
    finally:
        cluster.close()


def _command(process: psutil.Process) -> str:
    """Empty when it has ended meanwhile."""
    with contextlib.suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""


def _tree(process: int) -> list[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        found = psutil.Process(process)
        return [found, *found.children(recursive=True)]
    return []


def _serve() -> None:
    import ray
    from ray.cluster_utils import Cluster

    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def answer(value: object) -> None:
        answers.write(json.dumps(value) + "\n")

    answer(os.getpid())
    cluster: Any = Cluster()
    nodes: dict[str, Any] = {}
    try:
        for line in sys.stdin:
            word, *rest = json.loads(line)
            if word == "add":
                first = {"include_dashboard": False, "_system_config": FAST} if not nodes else {}
                node = cluster.add_node(num_cpus=rest[0], **NODE, **first)
                nodes[node.node_id[:8]] = node
                answer(node.node_id)
            elif word == "address":
                answer(cluster.address)
            elif word == "kill":
                node = nodes[rest[0]]
                own = [one.process.pid for started in node.all_processes.values() for one in started]
                for process in [one for number in own for one in _tree(number)]:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        process.kill()
                cluster.remove_node(node, allow_graceful=False)
                answer(True)
            elif word == "free":
                if not ray.is_initialized():
                    ray.init(address=cluster.address, log_to_driver=False)
                answer(ray.available_resources().get("CPU", 0.0))
    finally:
        with contextlib.suppress(Exception):
            ray.shutdown()
            cluster.shutdown()
        for process in _tree(os.getpid())[1:]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


if __name__ == "__main__":
    _serve()

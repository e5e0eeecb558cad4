"""A real Dask cluster on this machine, in a process of its own: a scheduler, nannies and workers of few threads each.

Everything listens on loopback; there is no dashboard. Run as a program it is the cluster: it prints its address, and
takes commands on its standard input, `scale N` and `workers`, each answered by a line of JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

PATIENCE = 60.0


@dataclass
class DaskCluster:
    process: subprocess.Popen[str]
    address: str

    @property
    def variables(self) -> dict[str, str]:
        return {"DASK_SCHEDULER_ADDRESS": self.address}

    def ask(self, command: str) -> dict[str, int]:
        """The process ids of all workers, by name, after the command was carried out."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{command}\n")
        self.process.stdin.flush()
        found: dict[str, int] = json.loads(self.process.stdout.readline())
        return found

    def scale(self, workers: int) -> dict[str, int]:
        return self.ask(f"scale {workers}")

    def workers(self) -> dict[str, int]:
        return self.ask("workers")


@contextlib.contextmanager
def dask_cluster(folder: Path, workers: int = 2, *, threads: int = 1) -> Iterator[DaskCluster]:
    """Its workers keep their files in `folder`."""
    with (folder / "dask.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, __file__, str(folder), str(workers), str(threads)],
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        address = process.stdout.readline().strip()
        assert address, (folder / "dask.log").read_text()
        yield DaskCluster(process, address)
    finally:
        family = [process, *psutil.Process(process.pid).children(recursive=True)]
        process.stdin.close()
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            for one in family:
                with contextlib.suppress(psutil.Error, OSError):
                    one.kill()
            process.wait()
        process.stdout.close()
        psutil.wait_procs([one for one in family if isinstance(one, psutil.Process)], timeout=PATIENCE)


def serve(folder: str, workers: int, threads: int) -> None:
    import dask
    from distributed import Client, LocalCluster

    dask.config.set({"distributed.worker.memory.terminate": False})
    options = {"threads_per_worker": threads, "processes": True, "host": "127.0.0.1", "dashboard_address": None}
    with LocalCluster(n_workers=workers, local_directory=folder, **options) as cluster, Client(cluster) as client:
        _say(cluster.scheduler_address)
        for line in sys.stdin:
            words = line.split()
            if words[0] == "scale":
                cluster.scale(int(words[1]))
                limit = time.monotonic() + PATIENCE
                while len(client.scheduler_info()["workers"]) != int(words[1]) and time.monotonic() < limit:
                    time.sleep(0.05)
            known = client.scheduler_info()["workers"]
            pids = client.run(os.getpid)
            _say(json.dumps({str(known[address]["name"]): pid for address, pid in pids.items()}))


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))

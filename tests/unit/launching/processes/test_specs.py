"""The variables that worker processes get."""

from __future__ import annotations

import errno
import socket
import sys
from pathlib import Path

import pytest

from shoal.environment import WorkerEnvironment, worker_environment
from shoal.job_config import JobConfig
from shoal.launching.processes.specs import Job, held_port, worker_processes
from shoal.values import Address


def job(config: JobConfig) -> Job:
    return Job(
        config=config,
        script="train.py",
        arguments=("--lr", "1"),
        run_dir=Path("runs/x"),
        token_file=Path("/tmp/token"),
        coordinator=Address("127.0.0.1", 7000),
    )


def test_each_worker_is_told_who_it_is() -> None:
    workers = worker_processes(job(JobConfig(workers=3)))
    assert [worker.spec.command for worker in workers] == [(sys.executable, "train.py", "--lr", "1")] * 3
    for number, worker in enumerate(workers):
        spec = worker.spec
        ours = {name: text for name, text in spec.variables.items() if name.startswith("SHOAL_")}
        environment = worker_environment({**ours, **{file.variable: str(file.path) for file in spec.files}})
        assert environment == WorkerEnvironment(Address("127.0.0.1", 7000), "/tmp/token", number)
        assert spec.variables["RANK"] == spec.variables["LOCAL_RANK"] == str(number)
        assert spec.variables["WORLD_SIZE"] == "3"
        assert worker.log == Path(f"runs/x/logs/worker-{number}.log")
    assert len({worker.spec.variables["MASTER_PORT"] for worker in workers}) == 1


def test_threads_option_beats_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert worker_processes(job(JobConfig(threads=2)))[0].spec.variables["OMP_NUM_THREADS"] == "2"
    assert "OMP_NUM_THREADS" not in worker_processes(job(JobConfig()))[0].spec.variables
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert worker_processes(job(JobConfig(workers=10_000)))[0].spec.variables["OMP_NUM_THREADS"] == "1"


def test_the_port_of_torch_s_store_is_free_for_its_server_and_for_nobody_else() -> None:
    with held_port() as holder:
        port = holder.getsockname()[1]
        with socket.socket() as other, pytest.raises(OSError) as refused:
            other.bind(("127.0.0.1", port))
        assert refused.value.errno == errno.EADDRINUSE
        with (
            socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True) as server,
            socket.create_connection(("127.0.0.1", port)) as client,
            server.accept()[0] as accepted,
        ):
            client.sendall(b"here")
            assert accepted.recv(4) == b"here"

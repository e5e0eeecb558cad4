"""Where the processes of a job on one machine listen: on loopback, all of them, and torch's own store too."""

from __future__ import annotations

import ipaddress
import json
import os
import shlex
import subprocess
from pathlib import Path

import pytest

from support.launcher import PATIENCE, SHOAL, shoal, write_script

# What follows is given `listeners`, which says where the whole job listens: [process, host, port] each.
LOOKING = """
import json
import psutil

def listeners():
    launcher = psutil.Process(os.getppid())
    return [
        [process.pid, *connection.laddr]
        for process in (launcher, *launcher.children(recursive=True))
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]
"""
# A plain torch script that makes the first process group, drops it, makes another one, and meets beside that again.
TORCH = """
import torch, torch.distributed as dist

def check(group=None):
    total = torch.ones(2)
    dist.all_reduce(total, group=group)
    assert total.tolist() == [2.0, 2.0]
    everywhere = [None, None]
    dist.all_gather_object(everywhere, listeners(), group=group)  # so that nobody has gone on meanwhile
    if dist.get_rank() == 0:
        for each in everywhere:
            print("HEARD", json.dumps(each))

put, put_in_store = [], dist.Store.set

def seeing(store, key, value):
    put.append(value)
    put_in_store(store, key, value)

dist.Store.set = seeing
backend = sys.argv[1]
os.environ.update(dict(pair.split("=") for pair in sys.argv[2:]))
dist.init_process_group(backend)
check()
rank = dist.get_rank()
dist.destroy_process_group()
# Rank 0 has the store: another rank that is faster would meet in the store that is about to go.
if rank == 0:
    open("dropped", "w").close()
while not os.path.exists("dropped"):
    time.sleep(0.01)
dist.init_process_group(backend)
check()
store, rank, size = next(dist.rendezvous("env://"))  # the same server, in a process that has it already
store.add("beside", 1)
check(dist.new_group([0, 1]))
dist.destroy_process_group()
if backend == "shoal":
    token = open(os.environ["SHOAL_TOKEN_FILE"], "rb").read()
    assert put and all(value.startswith(b"sealed by shoal|") and token not in value for value in put), put
"""
# A script of ours that looks around while it trains.
OURS = """
import torch, torch.nn.functional as F
import shoal

def train(run):
    model = run.model(torch.nn.Linear(2, 1))
    optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    data = torch.utils.data.TensorDataset(torch.randn(16, 2), torch.randn(16, 1))
    for x, y in run.batches(data, batch_size=4):
        if run.rank == 0 and run.step == 1:
            print("HEARD", json.dumps(listeners()))
        F.mse_loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()

shoal.main(train)
"""


def heard(stdout: str) -> list[list[tuple[int, str, int]]]:
    """Each look around: where somebody listened."""
    texts = [line.partition("HEARD ")[2] for line in stdout.splitlines() if "HEARD " in line]
    return [[tuple(one) for one in json.loads(text)] for text in texts]


def is_loopback(host: str) -> bool:
    return ipaddress.ip_address(host.removeprefix("::ffff:")).is_loopback


@pytest.mark.parametrize(
    ("backend", "variables"),
    [
        pytest.param("gloo", [], marks=pytest.mark.long),
        pytest.param("shoal", [], marks=pytest.mark.long),
        pytest.param("gloo", ["MASTER_ADDR=localhost"], marks=pytest.mark.long),
        pytest.param("gloo", ["USE_LIBUV=0"], marks=pytest.mark.long),
    ],
)
def test_the_store_of_a_plain_torch_script_listens_on_loopback_alone(
    tmp_path: Path, backend: str, variables: list[str]
) -> None:
    write_script(tmp_path, LOOKING + TORCH)
    outcome = shoal(tmp_path, "run", "-n", "2", "script.py", backend, *variables)
    assert outcome.code == 0, outcome
    looks = heard(outcome.stdout)
    assert len(looks) == 6
    for listening in looks:
        assert listening
        assert [one for one in listening if not is_loopback(one[1])] == []


@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root")
def test_gloo_listens_on_loopback_too_where_the_machines_name_stands_for_another_address(tmp_path: Path) -> None:
    """By itself gloo listens on the address of the machine's name."""
    write_script(tmp_path, LOOKING + TORCH)
    address = "10.99.0.1"  # of a machine that is called so
    machine = f"ip link set lo up; ip address add {address}/32 dev lo; hostname {address}"
    command = f"{machine}; exec {shlex.join([*SHOAL, 'run', '-n', '2', 'script.py', 'gloo'])}"
    done = subprocess.run(
        ["unshare", "--uts", "--net", "sh", "-c", command],
        cwd=tmp_path,
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done
    looks = heard(done.stdout)
    assert len(looks) == 6
    assert [one for listening in looks for one in listening if not is_loopback(one[1])] == []


@pytest.mark.parametrize(
    "options",
    [
        (),
        pytest.param(("--strategy", "parameter-server", "--servers", "2"), marks=pytest.mark.long),
        pytest.param(("--carrier", "gloo"), marks=pytest.mark.long),
    ],
    ids=["all-reduce", "servers", "gloo"],
)
def test_every_process_of_a_job_listens_on_loopback_alone(tmp_path: Path, options: tuple[str, ...]) -> None:
    write_script(tmp_path, LOOKING + OURS)
    outcome = shoal(tmp_path, "run", "-n", "2", *options, "script.py")
    assert outcome.code == 0, outcome
    (listening,) = heard(outcome.stdout)
    assert len({process for process, _, _ in listening}) >= 3  # the coordinator and two workers
    assert [one for one in listening if not is_loopback(one[1])] == []

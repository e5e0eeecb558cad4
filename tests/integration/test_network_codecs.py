"""Whole jobs whose gradients a codec encodes between machines: machine 0 has the coordinator, two others the workers.

With parameter servers, machine 0 has these, and machine 1 the job. The codec is the example of the tests, offered as an
installed package offers one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.events import Advised, GenerationFormed, JobEnded, ReplicaDiffered, WorkerDied
from support.launcher import write_token
from support.network import Network
from support.network_job import PATIENCE, NetworkJob
from support.offers import offer

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")

MACHINES = (1, 1, 2, 2)  # of the workers, by number: 0 and 2 lead theirs


@pytest.fixture
def network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Network]:
    monkeypatch.setenv("PYTHONPATH", offer(tmp_path / "site", "shoal.codecs", sparse="support.sparse_codec:Sparse"))
    with Network(3) as made:
        yield made


@pytest.mark.long
def test_sparse_gradients_between_machines_lose_nothing_that_is_sent(network: Network, tmp_path: Path) -> None:
    job = NetworkJob(network, tmp_path, MACHINES, codec="sparse:above=0")
    assert [job.result(worker) for worker in range(4)] == ["exact"] * 4
    assert job.exit_code(job.coordinator) == 0
    (formed,) = job.events(GenerationFormed)
    assert formed.codec == "sparse:above=0"


@pytest.mark.long
def test_replicas_stay_equal_with_a_lossy_codec_when_a_leader_is_killed(network: Network, tmp_path: Path) -> None:
    job = NetworkJob(network, tmp_path, MACHINES, **{"codec": "sparse:above=5", "digest-every": 5})
    job.reach(0, 10)
    job.workers[2].kill()
    counted = {job.result(worker) for worker in (0, 1, 3)}
    assert len(counted) == 1, counted
    assert "exact" not in counted, "the codec does leave something out"
    assert job.exit_code(job.coordinator) == 0
    assert [event.worker for event in job.events(WorkerDied)] == [2]
    assert not job.events(ReplicaDiffered)
    assert any("of worker 2 is lost with it" in event.text for event in job.events(Advised))
    assert [event.outcome for event in job.events(JobEnded)] == ["finished"]


@pytest.mark.long
def test_a_setting_that_the_codec_refuses_ends_the_job_with_its_words(network: Network, tmp_path: Path) -> None:
    job = NetworkJob(network, tmp_path, MACHINES, codec="sparse:above=-1")
    assert job.exit_code(job.coordinator) != 0
    (ended,) = job.events(JobEnded)
    assert "settings of sparse are: above" in ended.reason


SERVED_SCRIPT = """
import shoal, torch
from torch.utils.data import TensorDataset

SAMPLES, WIDTH, EPOCHS = 40, 2000, 3

class Uses(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.uses = torch.nn.Parameter(torch.zeros(SAMPLES, WIDTH))

    def forward(self, index):
        return -self.uses[index, 0].sum() / len(index)

def train(run):
    model = run.model(Uses())
    optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=1.0))
    for (index,) in run.batches(TensorDataset(torch.arange(SAMPLES)), batch_size=4, epochs=EPOCHS):
        model(index).backward()
        # The gradient is -1 over the step's samples for each use: with that rate, SGD adds one.
        optimizer.param_groups[0]["lr"] = float(run._session.iteration.step_samples)
        optimizer.step()
        optimizer.zero_grad()
    uses = model.uses.detach().round()
    if run.is_first:
        exact = bool((uses[:, 0] == EPOCHS).all() and (uses[:, 1:] == 0).all())
        print("exact" if exact else "other counts", flush=True)

if __name__ == "__main__":
    shoal.main(train)
"""
SERVED_TABLE, SERVED_PUSHES = 40 * 2000 * 4, 2 * 15  # bytes; pushes of both workers in step with each other


@pytest.mark.long
def test_pushes_to_servers_on_another_machine_are_encoded(network: Network, tmp_path: Path) -> None:
    write_token(tmp_path / "group-token", "a token for a group of servers")
    (tmp_path / "train.py").write_text(SERVED_SCRIPT)
    address, here = f"{network.host(0)}:7100", {"cwd": tmp_path, "start_new_session": True}
    serve = ("servers", "start", "-n", "2", "--address", address, "--token-file", "group-token")
    group = network.start(0, "-m", "shoal", *serve, **here)
    assert group.stdout is not None and address in group.stdout.readline()
    before = network.sent(1)
    served = ("--strategy", "parameter-server", "--servers", address, "--servers-token", "group-token")
    job = network.start(1, "-m", "shoal", "run", "-n", "2", *served, "--codec", "sparse:above=0", "train.py", **here)
    output, _ = job.communicate(timeout=2 * PATIENCE)
    assert job.returncode == 0 and "exact" in output, output
    # Without a codec, more than every push would have crossed. With it, the first values do, and little else.
    assert SERVED_TABLE < network.sent(1) - before < SERVED_TABLE * SERVED_PUSHES / 4
    group.terminate()
    group.wait(PATIENCE)

"""Jobs whose workers share a GPU: they learn what workers on CPUs learn, lose workers, and go on from checkpoints."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from shoal.events import CarrierChosen
from support.launcher import events_in, shoal

EXAMPLES = Path(__file__).parents[2] / "examples"
ON_CPU = {"CUDA_VISIBLE_DEVICES": ""}
# Everything that has state on a GPU: BatchNorm's buffers, dropout's generator, moments of the optimizer.
SCRIPT = """
import argparse, hashlib, time, torch, torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset
import shoal

def train(run):
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--stop", type=int)
    parser.add_argument("--loaders", type=int, default=0)
    parser.add_argument("--pause", type=float, default=0.0)
    options = parser.parse_args()
    data = torch.randn(960, 32, generator=torch.Generator().manual_seed(1))
    labels = data[:, :10].argmax(1)
    model = run.model(lambda: nn.Sequential(
        nn.Linear(32, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Dropout(0.1), nn.Linear(256, 10)))
    optimizer = run.optimizer(torch.optim.AdamW(model.parameters(), lr=1e-3))
    for x, y in run.batches(TensorDataset(data, labels), batch_size=16, epochs=options.epochs, loaders=options.loaders):
        assert x.device == y.device == run.device == model[0].weight.device, (x.device, run.device)
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        run.log(loss=loss)
        time.sleep(options.pause)
        if run.step == options.stop:
            run.stop("enough")
    digest = hashlib.sha256()
    for entry in model.state_dict().values():
        digest.update(entry.cpu().numpy().tobytes())
    scores = run.evaluate(lambda x, y: (model(x).argmax(1) == y).float().mean(), TensorDataset(data, labels), 64)
    print(f"on {run.device.type}: {digest.hexdigest()[:16]}, accuracy {scores['score']:.3f}")

shoal.main(train)
"""


def trained(folder: Path, *arguments: str, variables: dict[str, str] | None = None) -> list[tuple[str, str, float]]:
    """By worker that reached the end: kind of device, digest of its state, accuracy."""
    outcome = shoal(folder, "run", *arguments, variables=variables)
    assert outcome.code == 0, outcome.stderr + outcome.stdout
    found = re.findall(r"on (\w+): (\w+), accuracy ([\d.]+)", outcome.stdout)
    return [(kind, digest, float(accuracy)) for kind, digest, accuracy in found]


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return str(path)


WAYS = {
    "memory": (),
    "sync-batchnorm": ("--sync-batchnorm",),
    "over-tcp": ("--schedule", "ring"),
    "by-gloo": ("--carrier", "gloo"),
}


@pytest.mark.parametrize("options", WAYS.values(), ids=WAYS)
def test_workers_on_one_gpu_hold_the_same_bits(tmp_path: Path, script: str, options: tuple[str, ...]) -> None:
    on_gpu = trained(tmp_path, "-n", "2", "--digest-every", "1", *options, script, "--loaders", "1")
    assert [kind for kind, _, _ in on_gpu] == ["cuda", "cuda"]
    assert len({digest for _, digest, _ in on_gpu}) == 1
    on_cpu = trained(tmp_path, "-n", "2", *options, script, variables=ON_CPU)
    assert {kind for kind, _, _ in on_cpu} == {"cpu"}
    assert on_gpu[0][2] == pytest.approx(on_cpu[0][2], abs=0.05)


def test_nccl_wants_a_gpu_per_worker(tmp_path: Path, script: str) -> None:
    outcome = shoal(tmp_path, "run", "-n", "2", "--carrier", "nccl", script)
    assert outcome.code == 2, outcome.stderr
    assert re.search(r"ranks 0 and 1 on \S+ share a GPU: use --carrier shoal", outcome.stderr)


def test_a_killed_worker_is_replaced(tmp_path: Path, script: str) -> None:
    chaos = ("--chaos", "kill worker at step 40")
    long_enough = ("--epochs", "40", "--pause", "0.01")  # for a spare to come in, which has CUDA to start
    found = trained(tmp_path, "-n", "2", "--spares", "1", "--digest-every", "10", *chaos, script, *long_enough)
    assert [kind for kind, _, _ in found] == ["cuda", "cuda"]
    assert len({digest for _, digest, _ in found}) == 1
    (run_dir,) = (tmp_path / "runs").iterdir()
    chosen = [event for event in events_in(run_dir) if isinstance(event, CarrierChosen)]
    assert {event.carrier for event in chosen} == {"shoal"}
    assert all(re.fullmatch(r"ranks \d and \d on \S+ share a GPU", event.reason) for event in chosen)
    assert len(chosen) >= 2, "one for each generation of several workers"


def test_a_job_that_was_stopped_and_resumed_ends_where_the_other_does(tmp_path: Path, script: str) -> None:
    straight = trained(tmp_path, "-n", "2", "--run-dir", "straight", script)
    trained(tmp_path, "-n", "2", "--run-dir", "stopped", script, "--stop", "30")
    resumed = trained(tmp_path, "-n", "2", "--resume", "stopped", script)  # without --stop
    assert {digest for _, digest, _ in resumed} == {digest for _, digest, _ in straight}


@pytest.mark.parametrize(("first", "second"), [({}, ON_CPU), (ON_CPU, {})], ids=["to-the-cpu", "to-the-gpu"])
def test_a_job_goes_on_with_another_kind_of_device(
    tmp_path: Path, script: str, first: dict[str, str], second: dict[str, str]
) -> None:
    trained(tmp_path, "-n", "2", "--run-dir", "out", script, "--stop", "30", variables=first)
    resumed = trained(tmp_path, "-n", "2", "--resume", "out", script, variables=second)
    assert len({digest for _, digest, _ in resumed}) == 1
    assert resumed[0][2] > 0.7


@pytest.mark.parametrize(
    ("example", "arguments", "says"),
    [
        ("digits.py", ("--epochs", "2"), r"epoch 2: held-out accuracy ([\d.]+)%"),
        ("gpt.py", ("--steps", "60", "--bytes", "500000"), r"held-out loss ([\d.]+) nats"),
    ],
)
def test_examples_learn_on_a_gpu_what_they_learn_on_cpus(
    tmp_path: Path, example: str, arguments: tuple[str, ...], says: str
) -> None:
    found = []
    for variables in ({}, ON_CPU):
        line = ("run", "-n", "2", "--digest-every", "1", str(EXAMPLES / example), *arguments)
        outcome = shoal(tmp_path, *line, variables=variables)
        assert outcome.code == 0, outcome.stderr
        found.append(float(re.findall(says, outcome.stdout)[0]))
    assert found[0] == pytest.approx(found[1], rel=0.02)

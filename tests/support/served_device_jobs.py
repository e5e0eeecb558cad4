"""Jobs with parameter servers whose models are on a device: tests for a GPU, and for what stands in for one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest

from support.launcher import shoal

TESTS = Path(__file__).parents[1]
SERVED = ("--strategy", "parameter-server", "--servers", "2")
FREE = (*SERVED, "--consistency", "asynchronous")
BOUNDED = (*SERVED, "--staleness", "2")
ALL_REDUCE = ("--strategy", "all-reduce")
PATIENCE = 240.0  # seconds for a job of four processes that import torch and pass each operation through Python

# Buffers, moments of the optimizer and clipping: all that has values on the device besides parameters.
SCRIPT = """
import argparse, hashlib, torch, torch.nn.functional as F
from contextlib import nullcontext
from torch import nn
from torch.utils.data import TensorDataset
import shoal

parser = argparse.ArgumentParser()
parser.add_argument("--on", default="own")  # own: the worker's device
parser.add_argument("--stop", type=int)
options, _ = parser.parse_known_args()
if options.on == "other":
    from support.other_device import There as there, entered, moved
else:
    there = moved = lambda given: given
    entered = nullcontext

def train(run):
    data = torch.randn(960, 32, generator=torch.Generator().manual_seed(1))
    dataset = TensorDataset(data, data[:, :10].argmax(1))
    net = nn.Sequential(nn.Linear(32, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Linear(256, 10))
    model = run.model(moved(net))
    optimizer = run.optimizer(torch.optim.AdamW(model.parameters(), lr=2e-3), clip_norm=1.0)
    for x, y in run.batches(dataset, batch_size=16, epochs=2):
        loss = F.cross_entropy(model(there(x)), there(y))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        run.log(loss=loss.detach().cpu())
        if run.step == options.stop:
            run.stop("enough")
    digest = hashlib.sha256()
    for entry in model.state_dict().values():
        digest.update(entry.cpu().numpy().tobytes())
    right = run.evaluate(lambda x, y: (model(there(x)).argmax(1) == there(y)).float().mean().cpu(), dataset, 64)
    print(f"on {model[0].weight.device.type}: {digest.hexdigest()[:16]}, accuracy {right['score']:.3f}")

with entered():
    shoal.main(train)
"""


@dataclass(frozen=True)
class Outcome:
    workers: int  # that came to the end
    kinds: set[str]  # of the devices that the workers' models were on
    digests: set[str]  # of their states at the end
    accuracy: float


def trained(folder: Path, *options: str, on: str, stop: int | None = None) -> Outcome:
    """Of a job of two workers."""
    script = folder / "script.py"
    script.write_text(SCRIPT)
    arguments = ("--on", on, *(() if stop is None else ("--stop", str(stop))))
    line = ("run", "-n", "2", *options, str(script), *arguments)
    outcome = shoal(folder, *line, variables={"PYTHONPATH": str(TESTS)}, patience=PATIENCE)
    assert outcome.code == 0, outcome.stderr + outcome.stdout
    found = re.findall(r"on (\w+): (\w+), accuracy ([\d.]+)", outcome.stdout)
    assert found, outcome.stdout
    return Outcome(len(found), {kind for kind, _, _ in found}, {digest for _, digest, _ in found}, float(found[0][2]))


class ServedJobs:
    """Subclasses say where models are."""

    on: ClassVar[str]  # models of jobs with servers
    kind: ClassVar[str]  # of device, as torch calls it
    beside: ClassVar[str]  # models of jobs without servers

    def test_synchronous_servers_come_to_what_all_reduce_comes_to(self, tmp_path: Path) -> None:
        served = trained(tmp_path, *SERVED, "--replicas", "2", "--digest-every", "1", on=self.on)
        assert (served.workers, served.kinds) == (2, {self.kind})
        assert len(served.digests) == 1
        assert served.accuracy == pytest.approx(trained(tmp_path, on=self.beside).accuracy, abs=0.02)

    @pytest.mark.parametrize("settings", [FREE, BOUNDED], ids=["any", "bounded"])
    def test_workers_that_run_free_learn(self, tmp_path: Path, settings: tuple[str, ...]) -> None:
        free = trained(tmp_path, *settings, on=self.on)
        assert (free.workers, free.kinds) == (2, {self.kind})
        assert len(free.digests) == 1  # at the end of a loop all have the same values
        assert free.accuracy > 0.7

    def test_a_job_that_was_stopped_and_resumed_ends_where_the_other_does(self, tmp_path: Path) -> None:
        straight = trained(tmp_path, *SERVED, "--run-dir", "straight", on=self.on)
        stopped = trained(tmp_path, *SERVED, "--run-dir", "stopped", on=self.on, stop=25)
        assert stopped.digests != straight.digests
        resumed = trained(tmp_path, "--resume", "stopped", on=self.on)  # without --stop
        assert resumed.kinds == {self.kind}
        assert resumed.digests == straight.digests

"""A script that writes down by itself what it applies, and what a job's record says of the same: for comparing both.

Each worker appends a line to a file of its own for every step, with the time, the samples and whether the step counts;
nothing of that goes through the code that makes the record. With `--slow` worker 1 is slow to copy its state, and waits
in generation 2 for somebody to copy it to; with `--die` it dies in the first step of that generation.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from shoal.events import AnyEvent
from shoal.steps import MetricLine
from shoal.watch.incident_words import cost_of
from shoal.watch.record.goodput import Cost
from shoal.watch.record.run_record import RunRecord, read_record
from shoal.watch.record.series import METRICS

SAMPLES, BATCH = 240, 4

SCRIPT = """
import argparse, json, os, signal, time
from pathlib import Path
import torch
from torch import nn
from torch.utils.data import TensorDataset
import shoal
from shoal.training.recovery import regrouping

SAMPLES, BATCH = 240, 4

class Uses(nn.Module):
    def __init__(self):
        super().__init__()
        self.uses = nn.Parameter(torch.zeros(SAMPLES, dtype=torch.float64))
        self.weight = nn.Parameter(torch.ones(32, 32))

    def forward(self, index, x, scale):
        # The gradient of a sample's use is -1, whoever else is in the step.
        return torch.tanh(x @ self.weight / 32).pow(2).mean() - scale * self.uses[index].sum() / max(len(index), 1)

def train(run):
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--pause", type=float, default=0.05)
    parser.add_argument("--hurry", type=int, default=0)  # from this generation on there are no pauses
    parser.add_argument("--slow", type=float, default=0.0)
    parser.add_argument("--die", type=int, default=0)  # in the first step of this generation
    options = parser.parse_args()
    me = run._session.peers.worker
    if me == 1 and options.slow:
        copy_state = regrouping.copy_state
        def slowly(*arguments, **named):
            time.sleep(options.slow)
            return copy_state(*arguments, **named)
        regrouping.copy_state = slowly
    diary = open(f"diary-{me}.jsonl", "a", buffering=1)
    model = run.model(Uses())
    groups = [{"params": [model.uses], "lr": 1.0}, {"params": [model.weight], "lr": 0.001}]
    optimizer = run.optimizer(torch.optim.SGD(groups))
    x = torch.randn(SAMPLES, 32, generator=torch.Generator().manual_seed(1))
    for index, rows in run.batches(TensorDataset(torch.arange(SAMPLES), x), batch_size=BATCH, epochs=options.epochs):
        generation = run._session.peers.generation.number
        if me == 1 and generation == options.die:
            os.kill(os.getpid(), signal.SIGKILL)
        while options.slow and generation == 2 and run._session.peers.regroup_wish() is None:
            time.sleep(0.01)  # until somebody waits to be let in
        model(index, rows, run._session.iteration.step_samples).backward()
        optimizer.step()
        optimizer.zero_grad()
        samples = len(index) if run._session.iteration.samples else 0
        said = {"time": time.time(), "counts": bool(run.applied), "step": run.step + 1, "generation": generation,
                "samples": samples, "worker": me}
        print(json.dumps(said), file=diary)
        time.sleep(0 if options.hurry and generation >= options.hurry else options.pause)
    if run.is_first:
        off = (model.uses.detach() - options.epochs).abs().max().item()
        Path("result.json").write_text(json.dumps({"off": off, "step": run.step}), encoding="utf-8")

if __name__ == "__main__":
    shoal.main(train)
"""


def write(folder: Path) -> None:
    (folder / "script.py").write_text(SCRIPT, encoding="utf-8")


@dataclass(frozen=True)
class Truth:
    """What the workers wrote down."""

    times: list[float]  # of applied steps, or of updates of workers that run free, in order
    redone: int  # steps that were applied and then applied again
    samples: dict[int, int]  # by worker, of all that it applied
    void: int  # tries of any worker

    @property
    def longest(self) -> float:
        """Seconds between two applied steps, at most."""
        return max(later - earlier for earlier, later in zip(self.times, self.times[1:], strict=False))


def diaries(folder: Path) -> list[dict[str, Any]]:
    found = []
    for path in sorted(folder.glob("diary-*.jsonl")):
        found += [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.endswith("}")]
    return sorted(found, key=lambda row: row["time"])


def truth_of(folder: Path, *, is_free: bool, epochs: int) -> Truth:
    rows = diaries(folder)
    counting = [row for row in rows if row["counts"]]
    samples: dict[int, int] = defaultdict(int)
    for row in counting:
        samples[row["worker"]] += row["samples"]
    if is_free:  # every sample is in one update of each epoch that counts: all others were made again
        times = [row["time"] for row in counting]
        redone = len(times) - epochs * SAMPLES // BATCH
    else:
        first: dict[tuple[int, int], float] = {}
        for row in counting:
            first.setdefault((row["generation"], row["step"]), row["time"])
        times = sorted(first.values())
        redone = len(first) - len({step for _, step in first})
    return Truth(times, redone, dict(samples), sum(not row["counts"] for row in rows))


@dataclass(frozen=True)
class Told:
    """What the record of the same job says."""

    record: RunRecord
    cost: Cost
    lines: list[MetricLine]
    events: list[AnyEvent]

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def samples(self) -> dict[int, int]:
        return {worker: state.samples for worker, state in self.record.story.workers.items()}


def told_of(run_dir: Path, events: list[AnyEvent]) -> Told:
    record = read_record(run_dir)
    lines = [msgspec.json.decode(line, type=MetricLine) for line in (run_dir / METRICS).read_bytes().splitlines()]
    return Told(record, cost_of(record), lines, events)

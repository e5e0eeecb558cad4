"""Loader processes of workers that run free: they stay from lease to lease, and end with the loop, however it ends."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from shoal.data import texts
from shoal.data.order import sample_seeds
from support.launcher import shoal
from support.served_script import events_of

SAMPLES, EPOCHS = 240, 2
FREE = ("--strategy", "parameter-server", "--servers", "1", "--consistency", "asynchronous")
# Samples are augmented. A line per applied batch says which samples were in it, a file which process loads.
SCRIPT = """
import json, os, sys, time
from pathlib import Path
import torch
from torch.utils.data import DataLoader, Dataset
import shoal
from shoal.data.fingerprint import spread

COMPARED = spread(SAMPLES)

class Augmented(Dataset):
    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        if index not in COMPARED:  # so this process loads for the loop, and does not only compare workers' data
            Path(f"loaders/{os.getpid()}").touch()
        if index == 77 and "fail" in sys.argv:
            raise ValueError("this one is broken")
        return index, torch.rand(()) - 0.5

def train(run):
    model = run.model(torch.nn.Linear(1, 1))
    optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.01))
    loader = DataLoader(Augmented(), batch_size=4, num_workers=2, shuffle=True)
    with open(f"used-{os.getpid()}", "a") as used:
        for index, noise in run.batches(loader, epochs=EPOCHS):
            model(noise[:, None]).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if "raise" in sys.argv and run.step > 20:
                raise ValueError("the script is broken")
            if run.applied:
                print(json.dumps(list(zip(index.tolist(), noise.tolist()))), file=used, flush=True)
            time.sleep(0.05 if "slowly" in sys.argv else 0)

if __name__ == "__main__":
    Path("loaders").mkdir(exist_ok=True)
    shoal.main(train)
"""


def write(folder: Path) -> None:
    text = SCRIPT.replace("SAMPLES", str(SAMPLES)).replace("EPOCHS", str(EPOCHS))
    (folder / "script.py").write_text(text)


def used(folder: Path) -> list[tuple[int, float]]:
    """Every sample that counted, as it was augmented."""
    lines = [line for path in folder.glob("used-*") for line in path.read_text().splitlines()]
    for path in folder.glob("used-*"):
        path.unlink()
    return sorted(tuple(sample) for line in lines for sample in json.loads(line))


def augmented(epoch: int) -> list[tuple[int, float]]:
    """Every sample of an epoch: its random number depends on (seed, epoch, index) and nothing else."""
    seeds = sample_seeds(seed=0, epoch=epoch, indices=np.arange(SAMPLES))
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    return [(index, float(torch.rand((), generator=each) - 0.5)) for index, each in enumerate(generators)]


def starts(folder: Path) -> int:
    return len(list((folder / "loaders").iterdir()))


@pytest.mark.long
def test_loader_processes_stay_from_lease_to_lease_and_load_the_same_samples(tmp_path: Path) -> None:
    write(tmp_path)
    # Checkpoints come between: workers meet for each, and lease the rest again.
    outcome = shoal(tmp_path, "run", "-n", "2", *FREE, "--checkpoint-every", "20", "script.py")
    assert outcome.code == 0, outcome.stdout + outcome.stderr
    assert starts(tmp_path) <= 4  # two for each worker
    assert used(tmp_path) == sorted(sample for epoch in range(EPOCHS) for sample in augmented(epoch))


@pytest.mark.long
@pytest.mark.parametrize("bound", [(), ("--staleness", "2")], ids=["any", "bounded"])
def test_a_killed_worker_costs_no_sample_and_the_others_keep_their_loaders(
    tmp_path: Path, bound: tuple[str, ...]
) -> None:
    write(tmp_path)
    chaos = ("--chaos", "kill worker at step 30", "--run-dir", "run")
    outcome = shoal(tmp_path, "run", "-n", "3", *FREE, *bound, *chaos, "script.py", "slowly")
    assert outcome.code == 0, outcome.stdout + outcome.stderr
    assert any(event["kind"] == "fault-injected" for event in events_of(tmp_path / "run"))
    assert starts(tmp_path) <= 8
    samples = used(tmp_path)
    # The killed worker may have been about to write down its last batch.
    counts = [[index for index, _ in samples].count(index) for index in range(SAMPLES)]
    assert max(counts) == EPOCHS
    assert sum(EPOCHS - count for count in counts) <= 4


@pytest.mark.long
@pytest.mark.parametrize(
    ("how", "words"),
    [("fail", texts.sample_failed(77, "Augmented", "ValueError: this one is broken")), ("raise", "is broken")],
)
def test_a_loop_that_fails_leaves_no_loader_behind(tmp_path: Path, how: str, words: str) -> None:
    write(tmp_path)
    outcome = shoal(tmp_path, "run", "-n", "2", "--max-failures", "1", *FREE, "script.py", how)  # nothing is left over
    assert outcome.code != 0
    assert words in outcome.stderr

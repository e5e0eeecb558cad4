"""A job that reads its samples from Parquet files: every row counts once, also when a worker is killed."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from shoal import events
from support.launcher import events_in, shoal, write_script

ROWS = 60

COUNTING = """
import time
import torch
import shoal


def train(run: shoal.Run) -> None:
    model = run.model(torch.nn.Linear(3, 1))
    uses = run.model(torch.nn.Embedding(60, 1, dtype=torch.float64))
    with torch.no_grad():
        uses.weight.zero_()
    groups = [{"params": model.parameters(), "lr": 0.1}, {"params": uses.weight, "lr": 1.0}]
    optimizer = run.optimizer(torch.optim.SGD(groups))
    for row in run.batches(shoal.table_files("table"), batch_size=4, epochs=2):
        time.sleep(0.02)
        ((model(row["x"]) - row["y"][:, None]) ** 2 - uses(row["number"]).float()).mean().backward()
        uses.weight.grad *= (uses.weight.grad != 0).sum()
        optimizer.step()
        optimizer.zero_grad()
    if run.is_first:
        print("off by", round((uses.weight.detach() - 2).abs().max().item(), 5))


if __name__ == "__main__":
    shoal.main(train)
"""


def test_every_row_counts_once_although_a_worker_is_killed(tmp_path: Path) -> None:
    for part in range(3):
        numbers = range(part, ROWS, 3)
        columns = {
            "number": pa.array(numbers),
            "x": pa.array([[n / 10, 1.0, -n / 20] for n in numbers], pa.list_(pa.float32())),
            "y": pa.array([n / 30 for n in numbers], pa.float32()),
        }
        (tmp_path / "table").mkdir(exist_ok=True)
        pq.write_table(pa.table(columns), tmp_path / "table" / f"part-{part}.parquet", row_group_size=8)
    script = write_script(tmp_path, COUNTING)
    outcome = shoal(tmp_path, "run", "-n", "2", "--chaos", "kill worker 1 at step 4", str(script))
    assert outcome.code == 0, outcome
    assert "off by 0.0" in outcome.stdout
    assert any(isinstance(event, events.WorkerDied) for event in events_in(next((tmp_path / "runs").iterdir())))

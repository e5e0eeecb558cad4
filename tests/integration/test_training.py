"""Whole jobs: the launcher, the coordinator and real workers that train, fail and are killed."""

from __future__ import annotations

import json
import re
import signal
import tempfile
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from support.launcher import leftovers, processes_in, shoal, started, wait_for_file, wait_for_line

HEAD = """
import os, sys, time, signal
import torch, torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset
import shoal

def data(samples=61):
    x = torch.randn(samples, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return TensorDataset(x, x[:, :2].sin())

def net():
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2)).double()
"""
LOOP = """
def train(run):
    model = run.model(net())
    optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9))
    for x, y in run.batches(data(), batch_size=BATCH, epochs=EPOCHS):
        loss = F.mse_loss(model(x), y)
        loss.backward()
        before_update(run)
        optimizer.step()
        optimizer.zero_grad()
        run.log(loss=loss)
    finish(run, model)

def finish(run, model):
    if run.is_first:
        torch.save(model.state_dict(), "result.pt")
    print("done", run.step, flush=True)

if __name__ == "__main__":
    shoal.main(train)
"""


def script(folder: Path, before_update: str = "pass", *, epochs: int = 3, batch: int = 4) -> None:
    body = f"BATCH, EPOCHS = {batch}, {epochs}\ndef before_update(run):\n    {before_update}\n"
    (folder / "script.py").write_text(HEAD + body + LOOP)


def result(folder: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = torch.load(folder / "result.pt", weights_only=True)
    return found


def events(run_dir: Path, kind: str) -> list[dict[str, Any]]:
    records = [json.loads(line) for line in (run_dir / "events.jsonl").read_text().splitlines()]
    return [record["event"] for record in records if record["event"]["kind"] == kind]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a job of three workers in which nothing went wrong."""
    made = tmp_path_factory.mktemp("undisturbed")
    script(made)
    assert shoal(made, "run", "-n", "3", "--run-dir", "out", "script.py").code == 0
    return made


@pytest.mark.long
def test_three_processes_compute_what_one_computes(undisturbed: Path, tmp_path: Path) -> None:
    script(tmp_path, batch=12)
    assert shoal(tmp_path, "run", "-n", "1", "script.py").code == 0
    found = result(undisturbed)
    for name, tensor in result(tmp_path).items():
        assert (tensor - found[name]).abs().max().item() <= 1e-9
    assert events(undisturbed / "out", "job-ended")[0]["outcome"] == "finished"
    assert len(events(undisturbed / "out", "worker-joined")) == 3
    assert leftovers(undisturbed) == []


SABOTAGE = """
broken_once = []
def sabotage(run):
    if run.rank == 1 and run.step == {step} and not broken_once:
        broken_once.append(True)
        run._session.peers.group.abort("broken on purpose")
"""


def sabotaged(folder: Path, step: int, before_update: str = "pass") -> None:
    """Before the first backward of this step, worker 1 breaks its own group: every member's step becomes void."""
    script(folder, before_update)
    text = (folder / "script.py").read_text()
    text = text.replace("        loss = F.mse", "        sabotage(run)\n        loss = F.mse", 1)
    (folder / "script.py").write_text(text.replace("def train(run)", SABOTAGE.format(step=step) + "def train(run)"))
    outcome = shoal(folder, "run", "-n", "3", "--run-dir", "out", "script.py")
    assert outcome.code == 0, outcome.stderr


def assert_same_bits(one: Path, other: Path) -> None:
    expected, found = result(one), result(other)
    assert all(torch.equal(tensor, found[name]) for name, tensor in expected.items())


@pytest.mark.long
def test_an_exchange_broken_on_purpose_is_redone_in_the_next_generation(undisturbed: Path, tmp_path: Path) -> None:
    sabotaged(tmp_path, 3)
    assert_same_bits(undisturbed, tmp_path)
    assert [event["generation"] for event in events(tmp_path / "out", "generation-formed")] == [1, 2]
    # A member that was still in the reduction of step 2 when the group broke redoes that one, or copies its result.
    voided = {event["step"] for event in events(tmp_path / "out", "step-voided")}
    assert {3} <= voided <= {2, 3}


@pytest.mark.long
def test_a_script_that_raises_in_a_void_iteration_starts_again(undisturbed: Path, tmp_path: Path) -> None:
    sabotaged(tmp_path, 6, "if not run.applied: raise ArithmeticError('no gradient')")
    assert_same_bits(undisturbed, tmp_path)
    assert any("starts again from the top" in event["text"] for event in events(tmp_path / "out", "advised"))


@pytest.mark.parametrize("moment", ["before_update", pytest.param("in forward", marks=pytest.mark.long)])
@pytest.mark.long
def test_a_worker_killed_in_a_step_is_named_with_step_and_operation(tmp_path: Path, moment: str) -> None:
    is_victim = 'os.environ["RANK"] == "1" and run.step == 5'
    kill = f'if {is_victim}: print("about to die", flush=True); os.kill(os.getpid(), signal.SIGKILL)'
    script(tmp_path, kill if moment == "before_update" else "pass")
    if moment == "in forward":
        text = (tmp_path / "script.py").read_text()
        (tmp_path / "script.py").write_text(
            text.replace("        loss = F.mse", f"        {kill}\n        loss = F.mse", 1)
        )
    outcome = shoal(tmp_path, "run", "-n", "3", "--run-dir", "out", "script.py")
    assert outcome.code == 0, outcome.stderr
    assert "[worker 1] about to die" in outcome.stdout
    (died,) = events(tmp_path / "out", "worker-died")
    assert re.search(r"worker 1 .*was killed by SIGKILL in step [56], during exchange 0 of model 1", died["reason"])
    assert died["reason"] in outcome.stdout
    assert leftovers(tmp_path) == []


@pytest.mark.long
def test_a_script_that_raises_in_one_worker_shows_its_traceback_once(tmp_path: Path) -> None:
    script(tmp_path, 'if run.rank == 2 and run.step == 3: raise ValueError("bad batch")')
    outcome = shoal(tmp_path, "run", "-n", "3", "--max-failures", "1", "script.py")
    assert outcome.code == 1
    everything = outcome.stdout + outcome.stderr
    assert everything.count("ValueError: bad batch") == 1
    assert "worker 2" in outcome.stderr
    assert "in before_update" in outcome.stderr and "entry/shoal_main.py" not in outcome.stderr
    assert leftovers(tmp_path) == []


MISTAKES = {
    "models differ": (
        "net = lambda: nn.Linear(5, 2 + int(os.environ['RANK'] == '1')).double()",
        4,
        r"parameter 'weight' \[2, 5\] float64",
    ),
    "loop left early": (
        "def before_update(run):\n    if run.rank == 1 and run.step == 2: raise StopIteration",
        1,
        "StopIteration",
    ),
    "fewer samples": ("full = data\ndata = lambda: torch.utils.data.Subset(full(), [0])", 5, "1 sample"),
    "mean on one": (
        "def before_update(run):\n    run.rank == 1 and run.mean(1.0)",
        2,
        "error: worker 1 called run.mean and worker 0 did not; every worker must",
    ),
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("models differ", marks=pytest.mark.long),
        pytest.param("fewer samples", marks=pytest.mark.long),
        pytest.param("loop left early", marks=pytest.mark.long),
        pytest.param("mean on one", marks=pytest.mark.long),
    ],
)
def test_mistakes_in_a_script_end_the_job_with_one_line(tmp_path: Path, name: str) -> None:
    override, code, text = MISTAKES[name]
    script(tmp_path)
    source = (tmp_path / "script.py").read_text().replace("def train(run)", override + "\ndef train(run)")
    (tmp_path / "script.py").write_text(source)
    outcome = shoal(tmp_path, "run", "-n", "2", "--max-failures", "1", "script.py")
    assert outcome.code == code, outcome.stderr
    assert outcome.stderr.count("shoal: error:") == 1
    assert re.search(text, outcome.stderr), outcome.stderr
    assert leftovers(tmp_path) == []


@pytest.mark.long
def test_a_loop_left_early_by_one_worker_is_told_to_use_stop(tmp_path: Path) -> None:
    script(tmp_path)
    text = (tmp_path / "script.py").read_text()
    text = text.replace(
        "        run.log(loss=loss)\n",
        "        run.log(loss=loss)\n        if run.rank == 1 and run.step == 2: break\n",
    )
    (tmp_path / "script.py").write_text(text)
    outcome = shoal(tmp_path, "run", "-n", "2", "script.py")
    assert outcome.code == 4
    assert "to end it early, use run.stop" in outcome.stderr and outcome.stderr.count("shoal: error:") == 1


NESTED = """
def train(run):
    model = run.model(net())
    optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.05))
    for epoch in run.epochs(4):
        for x, y in epoch.batches(data(), batch_size=8):
            F.mse_loss(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
        print("behind epoch", epoch.number, flush=True)
        if epoch.number == 1 and run.rank == 1:
            run.stop("good enough")
    print("done", run.step, run.stopped, flush=True)

shoal.main(train)
"""


@pytest.mark.long
def test_a_stop_between_epochs_begins_no_other_on_any_worker(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(HEAD + NESTED)
    outcome = shoal(tmp_path, "run", "-n", "2", "--run-dir", "out", "script.py")
    assert outcome.code == 0, outcome.stderr
    for worker in range(2):
        said = re.findall(rf"\[worker {worker}\] (behind .*|done .*)", outcome.stdout)
        assert said == ["behind epoch 0", "behind epoch 1", "done 8 good enough"], outcome.stdout
    assert [event["step"] for event in events(tmp_path / "out", "stop-agreed")] == [8]
    assert events(tmp_path / "out", "job-ended")[0]["outcome"] == "stopped"
    assert leftovers(tmp_path) == []


def test_ctrl_c_ends_all_workers_after_the_same_step(tmp_path: Path) -> None:
    script(tmp_path, "time.sleep(0.01)", epochs=100_000)
    with started(tmp_path, "run", "-n", "2", "--run-dir", "out", "script.py") as process:
        wait_for_line(process, "step ")  # the launcher knows that they have joined
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    steps = re.findall(r"\[worker \d\] done (\d+)", stdout)
    assert len(steps) == 2 and len(set(steps)) == 1, stdout
    assert events(tmp_path / "out", "stop-agreed")
    assert leftovers(tmp_path) == []


LOADING = """
class Slow(Dataset):
    def __len__(self):
        return 40
    def __getitem__(self, index):
        info = torch.utils.data.get_worker_info()
        assert info is not None, "loaded in the training process"
        return index

def collate(samples):
    return torch.tensor(samples) * 10

def train(run):
    seen = []
    loader = DataLoader(Slow(), batch_size=4, num_workers=2, collate_fn=collate)
    for number, batch in enumerate(run.batches(loader, epochs=EPOCHS)):
        seen += batch.tolist()
        if number == KILL_AT:
            print("killing", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
    print("saw", sorted(seen), flush=True)

if __name__ == "__main__":
    shoal.main(train)
"""


@pytest.mark.long
def test_loader_processes_and_collate_of_a_data_loader_are_used(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(HEAD + "EPOCHS, KILL_AT = 1, None\n" + LOADING)
    outcome = shoal(tmp_path, "run", "-n", "2", "script.py")
    assert outcome.code == 0, outcome.stderr
    seen = [number for line in re.findall(r"saw \[(.*)\]", outcome.stdout) for number in map(int, line.split(", "))]
    assert sorted(seen) == [10 * index for index in range(40)]


@pytest.mark.long
def test_a_killed_worker_with_loader_processes_is_noticed_at_once_and_leaves_none(tmp_path: Path) -> None:
    kill = "EPOCHS, KILL_AT = 10, (3 if os.environ['RANK'] == '1' else None)\n"
    (tmp_path / "script.py").write_text(HEAD + kill + LOADING)
    # Killed loader processes cannot remove their sockets, whose paths must be short.
    with (
        tempfile.TemporaryDirectory() as sockets,
        started(tmp_path, "run", "-n", "2", "script.py", variables={"TMPDIR": sockets}) as process,
    ):
        stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 0, stderr
    assert re.search(r"worker 1 .*was killed by SIGKILL", stdout)
    assert leftovers(tmp_path) == []


@pytest.mark.long
def test_a_killed_launcher_leaves_no_process(tmp_path: Path) -> None:
    script(tmp_path, "time.sleep(0.01)", epochs=100_000)
    with started(tmp_path, "run", "-n", "2", "--run-dir", "out", "script.py") as process:
        wait_for_file(tmp_path / "out/events.jsonl", count=8)
        workers = processes_in(tmp_path)
        process.kill()
        process.communicate(timeout=60)
        psutil.wait_procs(workers, timeout=30)
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize(
    "ending",
    [
        pytest.param("raise ValueError('in the child')", marks=pytest.mark.long),
        pytest.param("sys.exit(0)", marks=pytest.mark.long),
        pytest.param("os._exit(0)", marks=pytest.mark.long),
    ],
)
def test_a_forked_child_leaves_its_parent_s_job_alone(tmp_path: Path, ending: str) -> None:
    script(tmp_path, f"if run.step == 3 and os.fork() == 0: {ending}")
    with started(tmp_path, "run", "-n", "2", "--run-dir", "out", "script.py") as process:
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 0, stderr
    assert len(events(tmp_path / "out", "generation-formed")) == 1
    assert len(events(tmp_path / "out", "worker-left")) == 2

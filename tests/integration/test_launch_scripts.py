"""`shoal run` with scripts that work: plain ones, torch.distributed ones, ones that join the job."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import msgspec
import pytest

from shoal.events import JobEnded, JobStarted, Record
from support.launcher import shoal, write_script


def records(run_dir: Path) -> list[Record]:
    return [msgspec.json.decode(line, type=Record) for line in (run_dir / "events.jsonl").read_bytes().splitlines()]


def test_output_arguments_and_variables_reach_every_worker(tmp_path: Path) -> None:
    write_script(
        tmp_path, "print(sys.argv[1:], os.environ['RANK'], os.environ['WORLD_SIZE'], os.environ['LOCAL_RANK'])"
    )
    outcome = shoal(tmp_path, "run", "-n", "3", "--run-dir", "out", "script.py", "-n", "7", "--seed", "--", "x")
    assert outcome.code == 0
    assert sorted(outcome.stdout.splitlines()) == [
        f"[worker {rank}] ['-n', '7', '--seed', '--', 'x'] {rank} 3 {rank}" for rank in range(3)
    ]
    assert outcome.stderr == ""
    assert (tmp_path / "out/logs/worker-2.log").read_text() == "['-n', '7', '--seed', '--', 'x'] 2 3 2\n"


def test_one_worker_prints_without_prefix_and_all_settings_are_saved(tmp_path: Path) -> None:
    write_script(tmp_path, "print('hello')")
    (tmp_path / "job.toml").write_text('seed = 5\nthreads = 3\nrun_dir = "named"\n')
    outcome = shoal(tmp_path, "run", "--config", "job.toml", "--seed", "6", "script.py")
    assert (outcome.code, outcome.stdout) == (0, "hello\n")
    saved = tomllib.loads((tmp_path / "named/config.toml").read_text())
    assert (saved["seed"], saved["threads"], saved["run-dir"], saved["workers"]) == (6, 3, "named", 1)
    first, *_, last = (record.event for record in records(tmp_path / "named"))
    assert isinstance(first, JobStarted)
    assert (first.script, first.workers, first.seed) == ("script.py", 1, 6)
    assert isinstance(last, JobEnded)
    assert last.outcome == "finished"


@pytest.mark.long
def test_default_run_directories_never_collide(tmp_path: Path) -> None:
    write_script(tmp_path, "pass")
    for _ in range(2):
        assert shoal(tmp_path, "run", "script.py").code == 0
    assert len(list((tmp_path / "runs").iterdir())) == 2


def test_joined_workers_show_progress_and_a_summary(tmp_path: Path) -> None:
    text = """
if me.worker == 0:
    client.report(events.LoopStarted(loop=0, epochs=1, steps_per_epoch=4, global_batch=20, samples_per_epoch=80))
for step in range(1, 5):
    report(step, loss=1.0 / step)
if me.worker == 0:
    client.report(events.Evaluated(step=4, samples=50, scores={"accuracy": 0.9375}))
leave(4)
print("after training")
"""
    write_script(tmp_path, text, joins=True)
    outcome = shoal(tmp_path, "run", "-n", "2", "script.py")
    assert outcome.code == 0
    assert "evaluated at step 4: accuracy 0.9375 (50 samples)" in outcome.stdout
    assert "finished: 4 steps" in outcome.stdout
    assert "the record is in runs/" in outcome.stdout
    assert "communication" in outcome.stdout
    assert outcome.stdout.count("after training") == 2


def test_unmodified_torch_distributed_script_runs(tmp_path: Path) -> None:
    text = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(2) * (dist.get_rank() + 1)
dist.all_reduce(total)
print("sum", total.tolist())
dist.destroy_process_group()
"""
    write_script(tmp_path, text)
    outcome = shoal(tmp_path, "run", "-n", "2", "script.py")
    assert outcome.code == 0, outcome.stderr
    assert "[worker 0] sum [3.0, 3.0]" in outcome.stdout
    assert "[worker 1] sum [3.0, 3.0]" in outcome.stdout


@pytest.mark.long
def test_script_that_spawns_its_own_workers_is_told_what_to_do(tmp_path: Path) -> None:
    text = """
import torch.multiprocessing as mp

def work(rank):
    print("never")

if __name__ == "__main__":
    mp.spawn(work, nprocs=2)
"""
    write_script(tmp_path, text)
    outcome = shoal(tmp_path, "run", "-n", "2", "script.py")
    assert outcome.code == 2
    assert outcome.stdout == ""
    [line] = outcome.stderr.splitlines()
    assert "script.py, line 9" in line
    assert "torch.multiprocessing.spawn" in line
    assert 'int(os.environ["RANK"])' in line


@pytest.mark.long
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_script_that_starts_workers_as_processes_is_told_what_to_do(tmp_path: Path, method: str) -> None:
    text = f"""
import torch.distributed as dist, torch.multiprocessing as mp
def work(rank):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29599")
    dist.init_process_group("gloo", rank=rank, world_size=2)
if __name__ == "__main__":
    context = mp.get_context({method!r})
    processes = [context.Process(target=work, args=(rank,)) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
"""
    write_script(tmp_path, text)
    outcome = shoal(tmp_path, "run", "-n", "2", "script.py")
    assert outcome.code == 2, outcome.stderr
    assert "torch.distributed.init_process_group as rank" in outcome.stderr
    assert "`shoal run` has already started them" in outcome.stderr


@pytest.mark.long
def test_dataloader_workers_and_spawn_in_a_child_still_work(tmp_path: Path) -> None:
    text = """
import torch, torch.utils.data as data

if __name__ == "__main__":
    loader = data.DataLoader(data.TensorDataset(torch.arange(6.0)), batch_size=2, num_workers=1)
    print(sum(batch.sum().item() for batch, in loader))
    child = "import torch.multiprocessing as mp; print(mp.spawn.__module__)"
    print(subprocess.run([sys.executable, "-c", child], capture_output=True, text=True).stdout.strip())
"""
    write_script(tmp_path, text)
    outcome = shoal(tmp_path, "run", "script.py")
    assert outcome.stdout.splitlines() == ["15.0", "torch.multiprocessing.spawn"]
    assert outcome.code == 0


def test_launcher_does_not_import_torch(tmp_path: Path) -> None:
    write_script(tmp_path, "pass")
    check = (
        "import sys; from shoal.cli.main import main; codes = main(['--help']), main(['run', 'script.py']); "
        "sys.exit(codes != (0, 0) or 'torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", check], cwd=tmp_path, check=False, capture_output=True).returncode == 0


def test_launch_from_python_takes_the_same_names(tmp_path: Path) -> None:
    write_script(tmp_path, "print(sys.argv[1:])")
    call = "import shoal; print(shoal.launch('script.py', '--lr', '1', workers=2, run_dir='out').exit_code)"
    done = subprocess.run([sys.executable, "-c", call], cwd=tmp_path, check=True, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "0"
    assert "[worker 1] ['--lr', '1']" in done.stdout
    assert (tmp_path / "out/config.toml").exists()


def test_job_that_is_over_before_the_launcher_could_watch_it_is_not_a_failure(tmp_path: Path) -> None:
    text = "report(1, loss=0.5)\nleave(1)\ntime.sleep(1)\nos.kill(os.getppid(), signal.SIGCONT)\n"
    write_script(tmp_path, text, joins=True)
    script = tmp_path / "script.py"
    script.write_text("import os, signal\nos.kill(os.getppid(), signal.SIGSTOP)\n" + script.read_text())
    outcome = shoal(tmp_path, "run", "script.py")
    assert outcome.code == 0, outcome.stderr
    assert "finished: 1 step" in outcome.stdout

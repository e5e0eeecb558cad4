"""`shoal bench`: runs, compares with torch's own, and writes what it measured."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from shoal.bench import texts
from shoal.bench.checkpoint.command import SavingJobs
from shoal.bench.checkpoint.figures import ASYNC
from shoal.cli import texts as cli_texts
from support.launcher import PATIENCE, leftovers, shoal, started


@pytest.mark.long
def test_training_benchmark_compares_with_ddp_in_one_run(tmp_path: Path) -> None:
    outcome = shoal(
        tmp_path, "bench", "training", "--model", "gpt", "--rounds", "1", "--steps", "1", "--json", "found.json"
    )
    assert outcome.code == 0, outcome.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    assert set(found) == {"gpt"}
    plain = {"ddp", "ddp static", "no exchange"}
    assert set(found["gpt"]["median"]) == {"shoal"} | plain | {f"{name}, in a Shoal worker" for name in plain}
    assert all(len(seconds) == 1 and seconds[0] > 0 for seconds in found["gpt"]["seconds"].values())
    assert len(found["gpt"]["bounds"]) == 1
    assert "step, of that of DDP over gloo" in outcome.stdout


def test_an_unknown_option_of_a_benchmark_is_one_line(tmp_path: Path) -> None:
    outcome = shoal(tmp_path, "bench", "training", "--round", "1")
    assert outcome.code == 2
    said = cli_texts.no_such_option("--round", ("--rounds",), "shoal bench training")
    assert outcome.stderr == f"shoal: error: {said}\n"


@pytest.mark.long
def test_checkpoint_benchmark_compares_with_torch_in_one_run(tmp_path: Path) -> None:
    outcome = shoal(
        tmp_path,
        *("bench", "checkpoint", "--only", "saves", "--only", "throughput", "--size-mb", "4", "--turns", "1"),
        *("--pairs", "1", "--window", "0.3", "--to", "here", "--json", "found.json"),
    )
    assert outcome.code == 0, outcome.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    saves = found["saves"]["saves"]
    assert list(saves) == ["shoal", "torch.save", "torch.save, fsync", "DCP", *ASYNC]
    assert all(len(made) == 1 and made[0]["total"] > 0 for made in saves.values())
    assert abs(found["saves"]["state_bytes"] - 4e6) < 0.2e6
    (pair,) = found["throughput"]["pairs"]
    assert pair["with"] > 0 and pair["without"] > 0
    assert len(found["bounds"]) == 4
    assert {line.split()[0] for line in outcome.stdout.splitlines()[-4:]} <= {"MISSED", "holds"}
    assert "turn 1 of 1" in outcome.stdout and "INFO" not in outcome.stdout
    assert list((tmp_path / "here").iterdir()) == []


@pytest.mark.long
def test_memory_of_a_save_is_seen(tmp_path: Path) -> None:
    """Shoal's copy of the state is there, and it is one."""
    found, _ = SavingJobs(tmp_path, size_mb=60).run("memory-0", "--method", "shoal", workers=1)
    assert 0.5 < found["growth"] / found["state_bytes"] < 1.5


@pytest.mark.long
def test_ctrl_c_ends_a_checkpoint_benchmark_and_leaves_nothing(tmp_path: Path) -> None:
    with started(tmp_path, "bench", "checkpoint", "--size-mb", "4", "--turns", "100000", "--to", "here") as process:
        assert process.stdout is not None
        assert any("turn 1" in line for line in process.stdout)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    assert list((tmp_path / "here").iterdir()) == []
    assert leftovers(tmp_path) == []


def test_what_a_benchmark_cannot_use_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    outcome = shoal(tmp_path, "bench", "checkpoint", "--to", "file")
    assert outcome.code == 2
    assert outcome.stderr == f"shoal: error: {texts.folder_not_written('file', 'File exists')}\n"
    outcome = shoal(tmp_path, "bench", "checkpoint", "--turns", "0")
    assert outcome.stderr == f"shoal: error: {texts.not_above_zero('turns', 0)}\n"


@pytest.mark.long
def test_recovery_benchmark_kills_workers_and_leaves_nothing(tmp_path: Path) -> None:
    outcome = shoal(tmp_path, "bench", "recovery", "--only", "kills", "--kills", "1", "--json", "found.json")
    found = json.loads((tmp_path / "found.json").read_text())
    assert outcome.code == (0 if all(bound["holds"] for bound in found["bounds"]) else 1), outcome.stderr
    assert len(found["kills"]["recoveries"]) == 1
    assert len(found["kills"]["replacements"]) == 1
    assert "from SIGKILL to the next step, median s" in outcome.stdout

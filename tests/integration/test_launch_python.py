"""`shoal.launch` in programs: functions by name and by cloudpickle, results, failures, Ctrl-C, threads."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shoal.events import JobStarted, WorkerStarted
from shoal.launching import texts
from support.launcher import PATIENCE, events_in, leftovers, wait_for_file, wait_for_line

# The body of a training function. torch is imported in workers alone: the program needs none.
TRAINING = """
    import torch
    torch.set_num_threads(1)
    model = run.model(torch.nn.Linear(4, 1))
    optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=lr))
    data = torch.utils.data.TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
    for x, y in run.batches(data, batch_size=8, epochs=epochs):
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        run.log(loss=loss, lr=lr)
"""
PROGRAM = f"""
import json, sys, threading
from pathlib import Path
import shoal
from shoal.errors import ScriptFailed, UsageError

def train(run, lr=0.1, epochs=2):
{TRAINING}
"""


@contextlib.contextmanager
def program(folder: Path, text: str) -> Iterator[subprocess.Popen[str]]:
    """A running Python program. Nothing of it and of its jobs may be left over."""
    (folder / "runtime").mkdir(exist_ok=True)
    (folder / "elsewhere").mkdir(exist_ok=True)
    (folder / "elsewhere" / "program.py").write_text(PROGRAM + text, encoding="utf-8")
    process = subprocess.Popen(
        [sys.executable, "elsewhere/program.py"],
        cwd=folder,
        env={**os.environ, "XDG_RUNTIME_DIR": str(folder / "runtime")},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()
    assert leftovers(folder) == []


def told(folder: Path, text: str) -> tuple[Any, str, str]:
    """What a program writes to `told.json`, and its output and errors."""
    with program(folder, text) as process:
        stdout, stderr = process.communicate(timeout=4 * PATIENCE)
    assert process.returncode == 0, stdout + stderr
    return json.loads((folder / "told.json").read_text()), stdout, stderr


@pytest.mark.long
@pytest.mark.timeout(300)
def test_functions_train_and_their_results_can_be_read(tmp_path: Path) -> None:
    text = """
def main():
    good = shoal.launch(train, arguments={"lr": 0.5}, workers=2, run_dir="good", checkpoint_every=4)
    assert good.check() is good
    reason = "no more"

    def failing(run):
        train(run, epochs=1)
        raise ValueError(reason)

    bad = shoal.launch(failing, run_dir="bad")
    raised = ""
    try:
        bad.check()
    except ScriptFailed as error:
        raised = str(error)
    Path("told.json").write_text(json.dumps({
        "exit codes": [good.exit_code, bad.exit_code],
        "errors": [good.error, bad.error],
        "raised": raised,
        "run directory": str(good.run_dir),
        "loss": [good.metrics["loss"].steps, good.metrics["loss"].values],
        "rates": [good.metrics["lr"].values[0], bad.metrics["lr"].values[0]],
        "best": good.best_checkpoint,
        "reports": [str(good.report()), str(bad.report())],
        "torch": "torch" in sys.modules,
    }))

if __name__ == "__main__":
    main()
"""
    found, stdout, stderr = told(tmp_path, text)
    assert found["exit codes"] == [0, 1]
    assert found["errors"][0] == ""
    assert "ValueError: no more" in found["errors"][1]
    assert found["raised"] == found["errors"][1]
    assert "ValueError: no more" in stderr
    assert found["run directory"] == "good"
    steps, values = found["loss"]
    assert steps == list(range(1, 9))  # 64 samples, 2 workers with 8 each, 2 epochs
    assert all(isinstance(value, float) for value in values)
    assert found["rates"] == [0.5, 0.1]
    assert found["best"] == "good/checkpoints/step-00000008-g1"
    assert [(tmp_path / page).exists() for page in found["reports"]] == [True, True]
    assert not found["torch"]
    assert "finished: 8 steps" in stdout
    [job] = [event for event in events_in(tmp_path / "good") if isinstance(event, JobStarted)]
    assert job.arguments[0] == f"{tmp_path}/elsewhere/program.py:train"


def test_mistakes_raise_before_anything_starts(tmp_path: Path) -> None:
    text = """
def says(*given, **options):
    try:
        shoal.launch(*given, **options)
    except UsageError as error:
        return str(error)

if __name__ == "__main__":
    Path("told.json").write_text(json.dumps([
        says(train, wokers=2),
        says(train, "--lr", "0.1"),
        says("elsewhere/program.py", arguments={"lr": 1}),
        says(train, arguments={"rate": 1}),
        says(7),
        says("missing.py"),
    ]))
"""
    found, stdout, stderr = told(tmp_path, text)
    assert "wokers" in found[0]
    assert "workers" in found[0]
    assert found[1] == texts.text_for_function("train", "--lr")
    assert found[2] == texts.arguments_of_script("elsewhere/program.py")
    assert "'rate'" in found[3]
    assert found[4] == texts.no_program(7)
    assert "missing.py" in found[5]
    assert (stdout, stderr) == ("", "")
    assert not (tmp_path / "runs").exists()


def test_a_script_that_launches_whenever_it_is_imported_is_told_what_to_do(tmp_path: Path) -> None:
    text = """
result = shoal.launch(train, run_dir="out")
Path("told.json").write_text(json.dumps([result.exit_code, result.error]))
"""
    (code, error), _, stderr = told(tmp_path, text)
    assert code == 2
    assert 'if __name__ == "__main__":' in error
    assert stderr.count("shoal.launch is called in worker") == 1


ENDLESS = """
if __name__ == "__main__":
    result = shoal.launch(train, arguments={"epochs": 1_000_000}, workers=2, run_dir="out")
    Path("told.json").write_text(json.dumps([result.exit_code, result.error, result.best_checkpoint is not None]))
"""


def test_ctrl_c_stops_the_job_and_the_program_goes_on(tmp_path: Path) -> None:
    with program(tmp_path, ENDLESS) as process:
        wait_for_line(process, "step ")
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, stderr
    code, error, has_checkpoint = json.loads((tmp_path / "told.json").read_text())
    assert code == 130
    assert texts.STOP_WORDS[signal.SIGINT] in error
    assert has_checkpoint


def test_a_thread_may_launch_and_scripts_need_no_function(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import sys\nprint('script', sys.argv[1:])\n")
    text = """
if __name__ == "__main__":
    results = []
    thread = threading.Thread(
        target=lambda: results.append(shoal.launch("script.py", "--lr", "1", workers=2, run_dir="out")))
    thread.start()
    thread.join()
    [result] = results
    Path("told.json").write_text(json.dumps(
        [result.exit_code, result.error, str(result.run_dir), dict(result.metrics), result.best_checkpoint]))
"""
    found, stdout, _ = told(tmp_path, text)
    assert found == [0, "", "out", {}, None]
    assert "[worker 1] script ['--lr', '1']" in stdout


@pytest.mark.long
def test_a_killed_program_leaves_neither_processes_nor_the_functions_file(tmp_path: Path) -> None:
    text = """
if __name__ == "__main__":
    def inner(run):
        Path("started").write_text("x\\n")
        train(run, epochs=1_000_000)
    shoal.launch(inner, workers=2, run_dir="out")
"""
    with program(tmp_path, text) as process:
        wait_for_file(tmp_path / "started")
        assert list((tmp_path / "runtime").glob("*/function.pickle"))
        process.kill()
        process.wait(PATIENCE)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_spare_takes_the_place_of_a_worker_with_a_function(tmp_path: Path) -> None:
    text = """
import os, signal, time

def dying(run):
    import torch
    model = run.model(torch.nn.Linear(4, 1))
    optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    data = torch.utils.data.TensorDataset(torch.randn(64, 4))
    for [x] in run.batches(data, batch_size=1, epochs=2):
        model(x).sum().backward()
        optimizer.step()
        time.sleep(0.05)  # spares are started when steps have been reported
        if run.step == 10 and run.rank == 1 and not os.path.exists("died"):
            log = Path("out/logs/spares.log")
            while not log.exists() or "is ready" not in log.read_text():
                time.sleep(0.05)
            Path("died").write_text("x")
            os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    result = shoal.launch(dying, workers=2, run_dir="out", spares=1)
    Path("told.json").write_text(json.dumps(result.exit_code))
"""
    code, stdout, stderr = told(tmp_path, text)
    assert code == 0, stdout + stderr
    assert [event.is_spare for event in events_in(tmp_path / "out") if isinstance(event, WorkerStarted)] == [True]


@pytest.mark.long
@pytest.mark.timeout(600)
def test_functions_are_resumed_by_name_and_given_again_otherwise(tmp_path: Path) -> None:
    text = """
if __name__ == "__main__":
    first = shoal.launch(train, run_dir="named")
    again = shoal.launch("", resume="named", workers=2)
    local = shoal.launch(lambda run: train(run, epochs=1), run_dir="local")
    try:
        shoal.launch("", resume="local")
        said = ""
    except UsageError as error:
        said = str(error)
    longer = shoal.launch(lambda run: train(run, epochs=2), resume="local")
    Path("told.json").write_text(json.dumps(
        [[one.exit_code for one in (first, again, local, longer)], said, longer.metrics["loss"].steps]))
"""
    (codes, said, steps), stdout, stderr = told(tmp_path, text)
    assert codes == [0, 0, 0, 0], stdout + stderr
    assert said == texts.function_not_kept("lambda", Path("local"))
    assert steps == list(range(1, 17))

"""`shoal runs`, `shoal show` and `shoal report` on jobs in every state."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import webbrowser
from pathlib import Path
from typing import Any

import msgspec
import pytest

from shoal import events
from shoal.cli import texts as cli_texts
from shoal.cli.main import main
from shoal.cli.records.runs import ago
from shoal.cli.terminal_tables import columns
from shoal.disk import texts
from shoal.errors import printable
from shoal.watch.report.page import write_report
from support.records import Job, applied, eventful, faulty, job_started


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(arguments) == 0
    return capsys.readouterr().out


def crashed(run_dir: Path, *more: events.Event) -> Path:
    """A job whose record just stops, in the middle of a line."""
    job = Job(run_dir)
    loop = events.LoopStarted(loop=1, epochs=3, steps_per_epoch=50, global_batch=8, samples_per_epoch=400)
    job.tell(job_started("--lr", "0.1", workers=2), loop)
    for step in range(1, 81):
        job.step(step, {"loss": 1.0 / step}, epoch=(step - 1) // 50)
    job.tell(applied(0, 60), applied(1, 60), *more)
    return job.write(torn=b'{"time":176319')


def at(path: Path, mtime: float) -> None:
    os.utime(path / "config.toml", (mtime, mtime))


def test_runs_newest_first_with_state_progress_and_result(capsys: pytest.CaptureFixture[str]) -> None:
    at(eventful(Path("runs/one")), 1000.0)
    at(crashed(Path("runs/two")), 3000.0)
    running = crashed(Path("runs/three"))
    at(running, 2000.0)
    lock = os.open(running / "lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    heading, *lines = said(capsys, "runs").splitlines()
    os.close(lock)
    assert heading.split() == ["run", "state", "progress", "result", "started", "took", "workers", "script"]
    assert [line.split()[:2] for line in lines] == [["two", "crashed"], ["three", "running"], ["one", "finished"]]
    assert "step 80 of 150, epoch 2 of 3" in lines[0], "from the metrics, which are ahead of the events"
    assert "loss 0.0125" in lines[0]
    assert "step 600 of 600, epoch 5 of 5  accuracy 0.99" in lines[2]
    assert lines[0].endswith("2  examples/digits.py --lr 0.1")


def test_runs_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    crashed(Path("elsewhere/job"))
    [run] = msgspec.json.decode(said(capsys, "runs", "elsewhere", "--json"))
    expected: dict[str, Any] = {
        "name": "job",
        "path": "elsewhere/job",
        "state": "crashed",
        "step": 80,
        "total_steps": 150,
        "epoch": 1,
        "epochs": 3,
        "scores": {},
        "workers": 2,
        "script": "examples/digits.py",
        "arguments": ["--lr", "0.1"],
        "problems": [],
    }
    assert {name: run[name] for name in expected} == expected
    assert run["seconds"] == pytest.approx(20.0)
    assert run["values"]["loss"] == pytest.approx(1 / 80)


def test_no_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs"]) == 0
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "no runs in runs; `shoal run SCRIPT` makes one\n")
    assert said(capsys, "runs", "--json") == "[]\n"
    assert main(["runs", "missing"]) == 2
    assert cli_texts.no_folder_of_runs(Path("missing")) in capsys.readouterr().err


def test_show_a_crashed_job(capsys: pytest.CaptureFixture[str]) -> None:
    crashed(Path("runs/job"))
    shown = said(capsys, "show", "job")
    for words in (
        "job: crashed",
        "`shoal run --resume runs/job` goes on from the last checkpoint",
        "examples/digits.py --lr 0.1",
        "step 80 of 150, epoch 2 of 3",
        "checkpoint-every  100",
        "runs/job/logs",
    ):
        assert words in shown
    assert "run-dir" not in shown
    assert "error:" not in shown


def test_show_tells_what_happened_and_why(capsys: pytest.CaptureFixture[str]) -> None:
    eventful(Path("runs/job"))
    shown = said(capsys, "show", "last")
    for words in (
        "job: finished: all workers finished",
        "held out  loss",
        "at step 300 from step-00000300-g1",
        "7 published, 1 lost, training held up 84 ms in all",
        "step-00000450-g2  lost",
        "! step-00000450-g2 lost by worker 1: part-1-of-3.safetensors: No space left on device",
        "! step-00000400-g2 cannot be used",
        "generation 3: workers 0, 1, 2: all 3 workers joined",
    ):
        assert words in shown
    [row] = [line.split() for line in shown.splitlines() if line.startswith("       2 ")]
    assert row == ["2", "31,450", "3:05", "53.7%", "16.7%", "13.0%", "1.9%", "7.4%", "7.4%", "426", "MB"]


def test_show_tells_what_went_wrong_and_what_it_cost(capsys: pytest.CaptureFixture[str]) -> None:
    faulty(Path("runs/job"))
    shown = said(capsys, "show", "last")
    for words in (
        "2 workers lost (1 expelled) and replaced, the coordinator restarted once, parameters differed once, "
        "9.8 s without progress, 3 steps (384 samples) redone, goodput 94%",
        "! on purpose: kill worker 2 (kill worker every 15s); worker 2 (hut, process 802) was killed by SIGKILL",
        "worker 4 was started, a spare that was ready: in place of worker 2",
        "without progress: 1.0 s; redone: 1 step (128 samples)",
        "worker 4 came in",
        "! parameters of worker 1 differed at step 154",
        "the job waits, 3 of 4 workers are here: worker 3 was expelled, and --min-workers is 4",
        "without progress: 8.0 s",
        "Goodput: the samples of applied steps",
        "undisturbed 512 samples/s",
    ):
        assert words in shown


def test_what_servers_read_from_workers_memory_has_its_own_column_in_show_and_report(
    capsys: pytest.CaptureFixture[str],
) -> None:
    job = Job(Path("runs/job"))
    job.tell(job_started(), applied(0, 9), applied(1, 9, bytes_shared=4_000_000))
    job.tell(applied(1, 18, reports=2, bytes_shared=4_500_000))
    page = write_report([job.write()], Path("report.html")).read_text(encoding="utf-8")
    shown = said(capsys, "show", "job")
    lines = (line.split() for line in shown.splitlines() if line.lstrip().startswith(("worker ", "0 ", "1 ")))
    headings, first, second = lines
    assert headings[-2:] == ["sent", "shared"]
    assert first[-4:] == ["12", "MB", "0", "bytes"]
    assert second[-4:] == ["23", "MB", "4.5", "MB"]
    assert "shared</th>" in page
    assert "4.5 MB</td>" in page


def test_a_job_in_which_nothing_went_wrong_says_so_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    crashed(Path("runs/job"))
    shown = said(capsys, "show", "job")
    assert "what went wrong, and what it cost:\n  Nothing went wrong: no worker was lost" in shown
    assert "Goodput" not in shown


def test_show_a_failed_job_with_its_error(capsys: pytest.CaptureFixture[str]) -> None:
    reason = "worker 1 raised ValueError: no\nTraceback (most recent call last):\n  File x\nValueError: no"
    crashed(Path("runs/job"), events.JobEnded(outcome="failed", exit_code=1, reason=reason, seconds=3.0))
    shown = said(capsys, "show", "job")
    assert "job: failed (exit code 1): worker 1 raised ValueError: no" in shown
    assert "error:\n  worker 1 raised ValueError: no\n  Traceback" in shown


def test_damaged_record_is_shown_as_far_as_it_goes(capsys: pytest.CaptureFixture[str]) -> None:
    run_dir = crashed(Path("runs/job"))
    (run_dir / "events.jsonl").write_bytes(b"\xff\n" + (run_dir / "events.jsonl").read_bytes())
    (run_dir / "config.toml").write_text("what = \n")
    shown = said(capsys, "show", "job")
    assert "step 80 of 150" in shown
    assert "1 line of events.jsonl left out" in shown
    assert "config.toml cannot be read" in shown
    assert "job" in said(capsys, "runs")


def test_text_of_a_job_cannot_move_the_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    evil = "\x1b[2J\x1b]0;title\x07\r\u202e"
    crashed(Path("runs/job"), events.Advised(worker=0, text=evil), job_started(evil))
    for command in (("show", "job"), ("runs",)):
        shown = said(capsys, *command)
        assert not [char for char in shown if not char.isprintable() and char != "\n"]


def test_report_goes_to_the_run_directory(capsys: pytest.CaptureFixture[str]) -> None:
    eventful(Path("runs/one"))
    assert said(capsys, "report", "one") == "runs/one/report.html\n"
    text = Path("runs/one/report.html").read_text(encoding="utf-8")
    assert "not the default" in text
    assert "runs/one/report.html" in said(capsys, "show", "one")


def test_report_of_several_runs_goes_where_it_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("one", "two"):
        eventful(Path("runs") / name, steps=200)
    assert said(capsys, "report", "one", "two") == "report.html\n"
    assert said(capsys, "report", "one", "two", "--to", "both.html") == "both.html\n"
    assert "2 runs" in Path("both.html").read_text(encoding="utf-8")


def test_report_is_opened_when_asked_for(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    run_dir = eventful(Path("runs/one"), steps=200)
    said(capsys, "report", "one")
    assert opened == []
    said(capsys, "report", "one", "--open")
    assert opened == [(run_dir / "report.html").resolve().as_uri()]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("report",), "RUN"),
        (("report", "none"), texts.no_run("none", "")),
        (("report", "one", "--too", "x"), "did you mean '--to'?"),
        (("report", "one", "--to", "missing/report.html"), "cannot be written: No such file or directory"),
        (("show",), "RUN"),
        (("show", "none"), texts.no_run("none", "")),
        (("runs", "--jason"), "did you mean '--json'?"),
    ],
)
def test_mistakes_are_one_line(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str) -> None:
    eventful(Path("runs/one"), steps=200)
    assert main(arguments) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("shoal: error: ")
    assert words in line


def test_listing_needs_no_torch() -> None:
    check = "import sys; from shoal.cli.records import report, runs, show; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", check], check=True, timeout=60)


def test_tables_fit_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    assert columns([("a", "b"), ("long", "x" * 60)], right=(0,)) == ["   a  b", "long  " + "x" * 21 + "..."]
    assert columns([("a" * 40, "y" * 60)]) == ["a" * 40 + "  " + "y" * 9 + "..."]
    assert printable("a\x1bb\udcff") == "a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize(
    ("seconds", "text"), [(-3, "0 s ago"), (89, "89 s ago"), (300, "5 min ago"), (7200, "2 h ago"), (2e5, "2 days ago")]
)
def test_age(seconds: float, text: str) -> None:
    assert ago(seconds) == text

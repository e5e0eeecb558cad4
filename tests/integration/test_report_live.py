"""`shoal report --live`: writes the page while somebody holds the job, and ends by itself or with Ctrl-C."""

from __future__ import annotations

import contextlib
import fcntl
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from support.launcher import PATIENCE, SHOAL, shoal
from support.records import Job, job_started


def running_job(folder: Path) -> Job:
    """A record without an end."""
    job = Job(folder / "job")
    job.tell(job_started())
    job.step(1, {"loss": 1.0})
    job.write()
    return job


@contextlib.contextmanager
def held(run_dir: Path) -> Iterator[None]:
    """As the launcher holds it while the job runs."""
    with (run_dir / "lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def following(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that has written its first page."""
    command = (*SHOAL, "report", "job", "--live")
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as live:
        try:
            assert live.stdout is not None
            assert live.stdout.readline() == "job/report.html\n"
            yield live
        finally:
            if live.poll() is None:
                live.kill()


def page(folder: Path) -> str:
    return (folder / "job" / "report.html").read_text(encoding="utf-8")


def is_live(folder: Path) -> bool:
    return "data-live" in page(folder).partition("<script")[0]


def test_page_is_written_again_until_the_job_ends(tmp_path: Path) -> None:
    job = running_job(tmp_path)
    with contextlib.ExitStack() as lock:
        lock.enter_context(held(job.run_dir))
        with following(tmp_path) as live:
            assert is_live(tmp_path)
            with (job.run_dir / "metrics.jsonl").open("ab") as file:
                job.step(2, {"zebra": 1.0})
                file.write(job.metrics[-1] + b"\n")
            limit = time.monotonic() + PATIENCE
            while "zebra" not in page(tmp_path).partition("<script")[0]:
                assert time.monotonic() < limit, "the page was not written again"
                time.sleep(0.1)
            assert is_live(tmp_path)
            lock.close()
            assert live.wait(PATIENCE) == 0
            assert live.stdout is not None
            assert live.stdout.read().endswith("the job has ended: this is the last page\n")
    assert not is_live(tmp_path)
    assert "crashed" in page(tmp_path), "the record has no end"


def test_ctrl_c_leaves_a_page_that_stays_as_it_is(tmp_path: Path) -> None:
    job = running_job(tmp_path)
    with held(job.run_dir), following(tmp_path) as live:
        assert live.stdout is not None
        assert "Ctrl-C" in live.stdout.readline()
        live.send_signal(signal.SIGINT)
        assert live.wait(PATIENCE) == 0
        assert "stopped" in live.stdout.read()
    assert not is_live(tmp_path)
    assert [path.name for path in job.run_dir.iterdir() if path.name.startswith(".")] == []


def test_a_job_that_is_over_has_its_last_page_at_once(tmp_path: Path) -> None:
    running_job(tmp_path)
    outcome = shoal(tmp_path, "report", "job", "--live")
    assert (outcome.code, outcome.stderr) == (0, "")
    assert outcome.stdout == "job/report.html\nthe job has ended: this is the last page\n"
    assert not is_live(tmp_path)

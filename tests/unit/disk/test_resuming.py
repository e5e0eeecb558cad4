"""What `--resume` takes from a run directory, and what beats it."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import msgspec
import pytest

from shoal.disk import run_directory, texts
from shoal.disk.resuming import recorded_job, resumed_settings
from shoal.disk.settings_merge import merge
from shoal.errors import UsageError
from shoal.events import Advised, AnyEvent, JobStarted, Record
from shoal.job_config import JobConfig


def a_run(folder: Path, **settings: object) -> Path:
    config = msgspec.convert({"workers": 4, "seed": 7, "run-dir": str(folder), **settings}, JobConfig)
    run_directory.create(config, "train.py").lock.close()
    return folder


def resumed(path: Path | str, file: str | None = None, **options: object) -> JobConfig:
    again = partial(merge, {"resume": str(path), **options}, file=file, origin="test")
    return resumed_settings(again(), lambda base: again(base=base))


def started(script: str, *arguments: str) -> JobStarted:
    return JobStarted(
        script=script, arguments=arguments, workers=1, strategy="all-reduce", schedule="auto", codec="identity", seed=0
    )


def record(folder: Path, *events: AnyEvent, torn: bytes = b"") -> None:
    lines = [msgspec.json.encode(Record(time=1.0, event=event)) for event in events]
    (folder / "events.jsonl").write_bytes(b"".join(line + b"\n" for line in lines) + torn)


def test_recorded_settings_are_the_base_and_what_is_given_beats_them(tmp_path: Path) -> None:
    path = a_run(tmp_path / "out", threads=3)
    file = tmp_path / "job.toml"
    file.write_text("seed = 8\nthreads = 2\n")
    config = resumed(path, str(file), threads=1)
    assert (config.workers, config.seed, config.threads) == (4, 8, 1)
    assert (config.run_dir, config.resume) == (str(path), str(path))
    given = ("resume", "workers")
    assert resumed(path, workers=2) == msgspec.structs.replace(resumed(path), workers=2, given=given)


def test_a_run_directory_that_was_moved_goes_on_where_it_is_now(tmp_path: Path) -> None:
    moved = a_run(tmp_path / "out").rename(tmp_path / "elsewhere")
    assert resumed(moved).run_dir == str(moved)


def test_settings_of_a_run_that_was_resumed_before_can_be_resumed_again(tmp_path: Path) -> None:
    path = a_run(tmp_path / "out")
    with run_directory.hold(path) as lock:
        run_directory.reopen(resumed(path, workers=2), lock)
    assert resumed(path).workers == 2


def test_another_run_directory_beside_it_is_a_contradiction(tmp_path: Path) -> None:
    path = a_run(tmp_path / "out")
    with pytest.raises(UsageError, match=r"--run-dir other and --resume .* are both given"):
        resumed(path, run_dir="other")
    assert resumed(path, run_dir=str(tmp_path / "." / "out")).run_dir == str(path)


@pytest.mark.parametrize("content", [None, "wrokers = 3\n", "workers ="])
def test_what_is_no_run_directory_is_refused_by_name(tmp_path: Path, content: str | None) -> None:
    (tmp_path / "out").mkdir()
    if content is not None:
        (tmp_path / "out" / "config.toml").write_text(content)
    with pytest.raises(UsageError, match="out"):
        resumed(tmp_path / "out")


def test_script_and_arguments_are_those_of_the_last_start(tmp_path: Path) -> None:
    quoted = Advised(worker=0, text='he said "job-started" and "kind":"job-started"')
    record(
        tmp_path, started("first.py"), quoted, started("train.py", "--lr", "1"), quoted, torn=b'{"kind":"job-started"'
    )
    assert recorded_job(tmp_path) == ("train.py", ("--lr", "1"))


@pytest.mark.parametrize("events", [None, [], [Advised(worker=0, text="job-started")], [started("")]])
def test_a_record_without_a_script_asks_for_one(tmp_path: Path, events: list[AnyEvent] | None) -> None:
    if events is not None:
        record(tmp_path, *events)
    with pytest.raises(UsageError) as refused:
        recorded_job(tmp_path)
    assert str(refused.value) == texts.record_names_no_script(tmp_path / "events.jsonl", tmp_path)

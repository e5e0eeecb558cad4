"""Run directories that hold anything in place of a record: commands say so in a line, and none waits or breaks."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shoal.checkpoint.published import manifest as manifests
from shoal.checkpoint.stores.local_store import LocalStore
from shoal.cli.main import main
from shoal.job_config import JobConfig
from support.checkpoints import publish
from support.examples import scaled
from support.records import eventful

RUN = Path("runs/job")
NEWEST = "checkpoints/step-00000005-g1"
PATIENCE = 60  # seconds, after which something waits that should not
READING = {  # which commands read which file
    "config.toml": [("show", "job"), ("runs",), ("checkpoints", "job"), ("export", "job", "--force")],
    "events.jsonl": [("show", "job"), ("runs", "--json"), ("report", "job", "--to", "page.html")],
    "metrics.jsonl": [("show", "job"), ("runs",), ("report", "job", "--to", "page.html")],
    "lock": [("show", "job"), ("runs",)],
    f"{NEWEST}/manifest.json": [("checkpoints", "job", "--verify"), ("export", "job", "--force")],
    f"{NEWEST}/part-0-of-2.safetensors": [("checkpoints", "job", "--verify"), ("export", "job", "--force")],
    "checkpoints/marks/best": [("checkpoints", "job"), ("export", "job", "--force", "--checkpoint", "best")],
}


def _filled(size: int) -> Callable[[Path], object]:
    def fill(path: Path) -> None:
        with path.open("wb") as file:
            file.truncate(size)

    return fill


KINDS: dict[str, Callable[[Path], object]] = {
    "fifo": os.mkfifo,
    "folder": lambda path: path.mkdir(),
    "device": lambda path: path.symlink_to("/dev/zero"),
    "loop": lambda path: path.symlink_to(path.name),
    "broken link": lambda path: path.symlink_to("nowhere"),
    "gone": lambda _: None,
    "empty": lambda path: path.write_bytes(b""),
    "gigantic": _filled(1 << 40),
    "no text": lambda path: path.write_bytes(b"\xff\xfe\x00" * 1000 + b"\n"),
    "nested": lambda path: path.write_bytes(b"a = " + b"[" * 100_000 + b"\n"),
    "digits": lambda path: path.write_bytes(b"workers = " + b"9" * 10_000 + b"\n"),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run as jobs leave it, with two checkpoints; the tests work on copies."""
    folder = tmp_path_factory.mktemp("whole")
    run = eventful(folder / RUN)
    (run / "config.toml").write_text(JobConfig(run_dir=str(RUN)).to_toml())
    (run / "lock").touch()
    store = LocalStore(run / "checkpoints")
    publish(store, 3)
    publish(store, 5, mark="best")
    return folder


@contextlib.contextmanager
def alone(whole: Path, folder: Path) -> Iterator[Path]:
    """A copy of the run, in whose parent's parent the commands work."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(whole, folder)
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield folder / RUN
    finally:
        os.chdir(before)


def say(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """The exit code and what is said on standard error. Too long a wait fails the test."""

    def too_long(*_: object) -> None:
        raise AssertionError(f"{arguments} waits for something")

    before = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(PATIENCE)
    try:
        code = main(arguments)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    return code, capsys.readouterr().err


def is_one_line(code: int, error: str) -> bool:
    said = error.splitlines()
    return code in (2, 9) and len(said) == 1 if code else len(said) <= 1 and "shoal: error" not in error


QUICK = ("fifo", "loop", "gigantic", "nested", "digits")


def _marked(name: str, *, is_quick: bool) -> Any:
    return name if is_quick else pytest.param(name, marks=pytest.mark.long)


@pytest.mark.parametrize("kind", [_marked(kind, is_quick=kind in QUICK) for kind in KINDS])
@pytest.mark.parametrize("file", READING)
def test_a_file_that_is_something_else_is_one_line(
    file: str, kind: str, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in READING[file]:
        with alone(whole, tmp_path / "copy") as run:
            (run / file).unlink()
            KINDS[kind](run / file)
            code, error = say(capsys, *command)
        assert is_one_line(code, error), (command, code, error)


@pytest.mark.parametrize(
    ("file", "kind", "command", "code", "words"),
    [
        ("config.toml", "fifo", ("checkpoints", "job"), 2, "config.toml cannot be read: it is a FIFO, no plain file"),
        ("config.toml", "digits", ("checkpoints", "job"), 2, "config.toml is not TOML"),
        ("config.toml", "nested", ("export", "job"), 2, "config.toml is not TOML: it is nested too deeply"),
        ("config.toml", "gigantic", ("export", "job"), 2, "more than 1,048,576 bytes"),
        (f"{NEWEST}/part-0-of-2.safetensors", "fifo", ("checkpoints", "job", "--verify"), 9, "step-00000005-g1"),
        (f"{NEWEST}/part-0-of-2.safetensors", "fifo", ("export", "job"), 9, "part-0-of-2.safetensors"),
    ],
)
def test_the_line_names_the_file_and_what_it_is(  # noqa: PLR0917
    file: str, kind: str, command: tuple[str, ...], code: int, words: str, whole: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    with alone(whole, tmp_path / "copy") as run:
        (run / file).unlink()
        KINDS[kind](run / file)
        assert say(capsys, *command)[0] == code
        assert words in say(capsys, *command)[1]


@pytest.mark.parametrize("file", ["events.jsonl", "metrics.jsonl", "config.toml"])
def test_what_cannot_be_read_is_said_in_what_is_shown(
    file: str, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with alone(whole, tmp_path / "copy") as run:
        (run / file).unlink()
        os.mkfifo(run / file)
        assert main(("report", "job", "--to", "page.html")) == 0
        page = Path("page.html").read_text(encoding="utf-8")
        assert f"{file} cannot be read: it is a FIFO, no plain file" in page
        assert main(("show", "job")) == 0
        shown = capsys.readouterr().out
        assert file == "metrics.jsonl" or f"{file} cannot be read: it is a FIFO, no plain file" in shown


HUGE = [
    "1e308",
    "-1e308",
    "9223372036854775807",
    "-9223372036854775808",
    "18446744073709551616",
    "1e400",
    "1" + "0" * 400,
]
ODD = ["-1", "0", "NaN", "1e-320", "253402300800", "1e13", '"x"', "null", "[]", "true", "1.5"]
NUMBER = re.compile(rb"(?<=[:\[, ])-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?(?=[,\]} \n])")


@pytest.mark.parametrize("value", [_marked(value, is_quick=value in (HUGE[0], HUGE[-1])) for value in HUGE])
@pytest.mark.parametrize("field", ["time", "samples", "seconds", "step", "size", "bytes_sent", "generation"])
def test_huge_numbers_in_the_record_cost_only_their_lines(
    field: str, value: str, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every event in turn has them in one run of the test: what is left of the record is shown."""
    with alone(whole, tmp_path / "copy") as run:
        for name in ("events.jsonl", "metrics.jsonl"):
            lines = (run / name).read_bytes().splitlines()
            wild = re.compile(rb'("' + field.encode() + rb'":)[^,}]+')
            lines[10::7] = [wild.sub(rb"\g<1>" + value.encode(), line) for line in lines[10::7]]
            (run / name).write_bytes(b"\n".join(lines) + b"\n")
        for command in (("show", "job"), ("runs",)):
            assert say(capsys, *command) == (0, "")


def mutated(data: bytes, chance: random.Random) -> bytes:
    """With some of its numbers replaced by others that no job has."""
    spots = list(NUMBER.finditer(data))
    count = min(len(spots), chance.choice([1, 1, 2, 5, 50]))
    for spot in sorted(chance.sample(spots, count), key=lambda spot: -spot.start()):
        data = data[: spot.start()] + chance.choice([*HUGE, *ODD]).encode() + data[spot.end() :]
    return data


def _changed(node: Any, chance: random.Random) -> Any:
    """With one of its parts replaced, or left out."""
    junk = [None, True, -1, 2**63, 10**400, 1e308, "", "x" * 5000, "\x00\x1b[31m", [], {}, [[]] * 3, "../../etc/passwd"]
    if isinstance(node, dict) and node and chance.random() < 0.9:
        key = chance.choice(sorted(node))
        if chance.random() < 0.15:
            return {name: value for name, value in node.items() if name != key}
        return {**node, key: _changed(node[key], chance)}
    if isinstance(node, list) and node and chance.random() < 0.9:
        place = chance.randrange(len(node))
        return [*node[:place], _changed(node[place], chance), *node[place + 1 :]]
    return chance.choice(junk)


def _sealed(data: bytes) -> bytes:
    """A manifest with a checksum that fits, so that what is in it is looked at."""
    with contextlib.suppress(msgspec.MsgspecError, RecursionError, OverflowError):
        return manifests.encode_manifest(msgspec.json.decode(data, type=manifests.Manifest))
    return data


def spoilt(file: str, data: bytes, seed: int) -> bytes:
    chance = random.Random(seed)
    if chance.random() < 0.5 or not file.endswith((".json", ".jsonl")):
        data = mutated(data, chance)
        return _sealed(data) if file.endswith(".json") else data
    if file.endswith(".json"):
        return _sealed(json.dumps(_changed(json.loads(data), chance)).encode())
    lines = data.splitlines()
    for _ in range(chance.choice([1, 3, 20])):
        place = chance.randrange(len(lines))
        lines[place] = json.dumps(_changed(json.loads(lines[place]), chance)).encode()
    return b"\n".join(lines) + b"\n"


def _look_at(whole: Path, folder: Path, file: str, seed: int, capsys: pytest.CaptureFixture[str]) -> None:
    with alone(whole, folder / "copy") as run:
        (run / file).write_bytes(spoilt(file, (run / file).read_bytes(), seed))
        for command in READING[file]:
            code, error = say(capsys, *command)
            assert is_one_line(code, error), (command, code, error)


MUTABLE = ["config.toml", "events.jsonl", "metrics.jsonl", f"{NEWEST}/manifest.json"]
EASY = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
HARD = settings(EASY, max_examples=scaled(500))


@EASY
@given(st.sampled_from(MUTABLE), st.integers(0, 2**32))
def test_spoilt_records_never_break_a_command(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], file: str, seed: int
) -> None:
    _look_at(whole, tmp_path, file, seed, capsys)


@pytest.mark.long
@HARD
@given(st.sampled_from(MUTABLE), st.integers(0, 2**32))
def test_many_spoilt_records_never_break_a_command(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], file: str, seed: int
) -> None:
    _look_at(whole, tmp_path, file, seed, capsys)


def test_names_in_a_record_cannot_move_the_cursor(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with alone(whole, tmp_path / "copy") as run:
        text = (run / "events.jsonl").read_text().replace("examples/digits.py", "\\u001b[2Jtrain.py")
        (run / "events.jsonl").write_text(text)
        code, error = say(capsys, "run", "--resume", "job")
    assert code == 2
    assert "\x1b" not in error and "train.py does not exist" in error

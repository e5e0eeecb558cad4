"""`shoal server`: what it does not take, and the points at which it can be made to crash."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from shoal.cli.jobs import server
from shoal.errors import UsageError
from support.launcher import write_token


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    return write_token(tmp_path / "token", "secret")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--number", "-1"], "--number is -1"),
        (["--number", "1", "--memory", "-5"], "--memory -5"),
        (["--number", "1", "--keeper", "127.0.0.1"], "HOST:PORT"),
        (["--number", "1", "--crash-at", "unit"], "POINT:N"),
        (["--number", "1", "--crash-at", "units:1"], "did you mean 'unit'"),
        (["--number", "1", "--crash-at", "unit:0"], "POINT:N"),
        (["--number", "1", "--listn", "::1"], "--listen"),
    ],
)
def test_bad_options_are_named(options: list[str], text: str, token_file: Path) -> None:
    given = ["--keeper", "127.0.0.1:7", "--token-file", str(token_file), *options]
    with pytest.raises(UsageError) as error:
        server.main(given)
    assert text in str(error.value)


def test_a_token_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nowhere"):
        server.main(["--keeper", "127.0.0.1:7", "--token-file", str(tmp_path / "nowhere"), "--number", "1"])


def test_it_kills_itself_at_the_nth_passing_of_its_point_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda process, number: killed.append((process, number)))
    crash_at = server._crash("applied:2")
    for point in ("unit", "applied", "unit", "unit"):
        crash_at(point)
    assert not killed
    crash_at("applied")
    assert killed == [(os.getpid(), signal.SIGKILL)]

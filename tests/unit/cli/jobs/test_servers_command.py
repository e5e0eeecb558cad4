"""`shoal servers`: mistakes, and what `status` shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.cli import texts
from shoal.cli.jobs.servers import describe
from shoal.cli.main import main
from shoal.values import Address, Server, ServerMap
from shoal.wire.keeper_messages import GroupStatus, ServerFigures
from support.launcher import write_token


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("start",), 2, "-n/--servers"),
        (("start", "-n", "0"), 2, texts.bad_server_count(0, 256)),
        (("start", "-n", "2", "--replicas", "3"), 2, texts.bad_replicas(3, 2)),
        (("start", "-n", "2", "--memory", "much"), 2, "--memory is 'much'"),
        (("start", "-n", "2", "--token-file", "/missing/token"), 2, texts.not_made("token-file", "/missing/token", "")),
        (("statsu", "127.0.0.1:9"), 2, "did you mean 'status'?"),
        (("status", "127.0.0.1:9", "--token-file", "missing"), 2, "`shoal servers start` names the file"),
        (("status", "127.0.0.1:9", "--token-file", "token"), 6, "no keeper of a server group can be reached"),
        (("add", "0", "127.0.0.1:9", "--token-file", "token"), 2, texts.too_few_to_add(0)),
        (("add", "127.0.0.1:9", "--token-file", "token"), 2, "invalid int value"),
        ((), 2, "there is start, status, add, remove, stop"),
    ],
)
def test_mistakes_are_one_line(
    arguments: tuple[str, ...],
    code: int,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_token(tmp_path / "token", "a token")
    monkeypatch.chdir(tmp_path)
    assert main(["servers", *arguments]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    [line] = captured.err.splitlines()
    assert words in line


def test_help_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["servers", "--help"]) == 0
    assert "remove   take one server out" in capsys.readouterr().out


def test_status_has_a_row_per_server() -> None:
    servers = tuple(Server(number, Address("rack", 7000 + number), "rack", 100 + number) for number in (0, 2))
    figures = ServerFigures(requests=50, seconds=10.0, queue_seconds=0.1, busy_seconds=5.0, held_bytes=4_000_000)
    status = GroupStatus(
        request=1,
        map=ServerMap(3, servers, (0, 1), (0, 2), 2, reason="server 1 is lost"),
        spaces=("one", "other"),
        figures=((0, figures),),
    )
    first, _, row, silent, jobs = describe(status)
    assert first == "version 3 of the map, 2 replicas of each parameter, blocks are moving: server 1 is lost"
    assert row.split() == ["0", "rack", "100", "rack:7000", "4.0", "MB", "none", "5.0", "2", "ms", "50%"]
    assert silent.split()[:4] == ["2", "rack", "102", "rack:7002"]
    assert jobs == "jobs: one, other"
    assert describe(GroupStatus(request=1)) == ["the group is not complete yet"]

"""`shoal join`: what it refuses before it looks for anybody."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.cli import texts
from shoal.cli.jobs.join import _job, main, parser
from shoal.disk.texts import FILE_OF_JOB, token_unreadable
from shoal.entry.function_script import SCRIPT, FunctionCall
from shoal.errors import UsageError
from shoal.job_config import JobConfig
from shoal.launching.processes.specs import Job
from shoal.values import Address
from shoal.wire.messages import Welcome
from shoal.wire.texts import MISSING
from support.launcher import write_token


@pytest.mark.parametrize("address", ["somewhere", "somewhere:0", "[::1]"])
def test_an_address_without_a_port_is_refused(tmp_path: Path, address: str) -> None:
    write_token(tmp_path / "token", "secret")
    with pytest.raises(UsageError) as caught:
        main([address, "--token-file", str(tmp_path / "token")])
    assert str(caught.value) == texts.no_port(address)


def test_a_missing_token_file_is_named_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        main(["127.0.0.1:1", "--token-file", str(tmp_path / "absent")])
    said = token_unreadable("--token-file", tmp_path / "absent", MISSING, FILE_OF_JOB)
    assert str(caught.value) == said


@pytest.mark.parametrize("seconds", ["-1", "inf", "nan"])
def test_a_wait_that_is_no_number_of_seconds_is_refused(tmp_path: Path, seconds: str) -> None:
    with pytest.raises(UsageError) as caught:
        main(["127.0.0.1:1", "--token-file", str(tmp_path / "absent"), "--wait", seconds])
    assert str(caught.value) == texts.bad_wait(float(seconds))


def joined(call: FunctionCall) -> Job:
    """What a joiner runs of a job whose launcher has Shoal in another folder than this machine."""
    welcome = Welcome(
        config=JobConfig(workers=2, run_dir="run").to_toml(),
        heartbeat=1.0,
        script="/elsewhere/site-packages/shoal/entry/function_script.py",
        arguments=call.as_arguments(),
    )
    given = parser().parse_all(["--token-file", "token", "127.0.0.1:7000"])
    return _job(welcome, given, Address("127.0.0.1", 7000), Path("token"))


def test_a_function_that_travels_with_its_launcher_only_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        joined(FunctionCall("train", pickle=str(tmp_path / "function")))
    assert str(caught.value) == texts.function_stays("train")


def test_a_function_of_a_module_is_called_by_this_machines_own_files() -> None:
    assert joined(FunctionCall("train", source="package.module")).script == SCRIPT

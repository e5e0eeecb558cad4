"""`shoal join`: what it refuses before it looks for anybody."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.cli import texts
from shoal.cli.jobs.join import main
from shoal.disk.texts import FILE_OF_JOB, token_unreadable
from shoal.errors import UsageError
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

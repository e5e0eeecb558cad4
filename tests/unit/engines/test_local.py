"""What only the local engine has. What every engine must do is in `contracts/test_engines.py`."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from shoal.engines.engine import Working, describe_exit
from shoal.engines.local import LocalEngine
from shoal.errors import UsageError
from support.engines import python, until_exits, until_printed


@pytest.fixture
def engine() -> Iterator[LocalEngine]:
    before = {process.pid for process in psutil.Process().children()}
    made = LocalEngine()
    yield made
    made.close()
    assert {process.pid for process in psutil.Process().children()} <= before


def test_inherited_descriptors_keep_their_numbers(engine: LocalEngine) -> None:
    reader, writer = os.pipe()
    engine.start(python(f"import os; os.write({writer}, b'here')"), descriptors=(writer,))
    os.close(writer)
    until_exits(engine)
    assert os.read(reader, 10) == b"here"
    os.close(reader)


def test_command_that_does_not_exist_is_a_usage_error(engine: LocalEngine) -> None:
    with pytest.raises(UsageError, match="/no/such/program"):
        engine.start(python("", command=("/no/such/program",)))


def test_private_files_go_when_the_launcher_is_gone(tmp_path: Path) -> None:
    (tmp_path / "private").mkdir()
    token = tmp_path / "private/token"
    token.write_text("secret")
    engine = LocalEngine((token,))
    engine.start(python("pass"))
    engine.close()
    assert not token.parent.exists()


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (0, "exited with code 0"),
        (7, "exited with code 7"),
        (-9, "was killed by SIGKILL"),
        (-63, "was killed by signal 63"),
    ],
)
def test_exits_in_words(code: int, text: str) -> None:
    assert describe_exit(code) == text


def test_a_process_that_computes_is_seen_at_work_and_one_that_sleeps_is_not(engine: LocalEngine) -> None:
    engine.start(python("import time\nprint('up', flush=True)\ntime.sleep(100)", name="idle"))
    until_printed(engine, "idle")
    engine.start(python("while True: pass", name="busy"))
    seen: list[str] = []
    limit = time.monotonic() + 60
    while seen.count("busy") < 4 and time.monotonic() < limit:
        select.select([engine], [], [], 0.2)
        seen += [happened.name for happened in engine.poll() if isinstance(happened, Working)]
    assert seen.count("busy") >= 4
    assert seen.count("idle") <= 2  # what it had used until then

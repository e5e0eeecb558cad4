"""Scripts as people write them in their first hour: those with one mistake are told so, right ones hear nothing.

Each script is a file of its own in `wrong/` or `right/`. Its docstring says in a sentence what is special about it;
then come lines for this test:

    run: -n 2 SCRIPT --lr 0.1    what `shoal run` is given; `run: python SCRIPT` starts it alone. Default: -n 2 SCRIPT
    exit: 2                      the exit code; by default 2 for a wrong script and 0 for a right one
    says: a part of a message    it is in the output just once; a line each
    long                         only `make test-long` runs it
"""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
KEYS = ("run", "exit", "says")
PATIENCE = 100.0  # seconds for one script; the machine may be busy


@dataclass(frozen=True)
class Expected:
    command: tuple[str, ...]  # SCRIPT stands for the script's path
    code: int
    says: tuple[str, ...]
    is_long: bool


def expected_of(script: Path) -> Expected:
    text = ast.get_docstring(ast.parse(script.read_text(encoding="utf-8")))
    assert text, f"{script.name} has no docstring that says what is special about it"
    lines = [line.strip() for line in text.splitlines()]
    values = {name: [line[len(name) + 1 :].strip() for line in lines if line.startswith(f"{name}:")] for name in KEYS}
    run = tuple((values["run"] or ["-n 2 SCRIPT"])[0].split())
    is_wrong = script.parent.name == "wrong"
    assert not is_wrong or values["says"], f"{script.name} does not say what its user is told"
    return Expected(
        command=run if run[0] == "python" else ("shoal", "run", *run),
        code=int((values["exit"] or ["2" if is_wrong else "0"])[0]),
        says=tuple(values["says"]),
        is_long="long" in lines,
    )


STARTERS = {"python": (sys.executable,), "shoal": (sys.executable, "-m", "shoal")}


def scripts(kind: str) -> list[Any]:
    found = []
    for script in sorted((HERE / kind).glob("*.py")):
        marks = [pytest.mark.long] if expected_of(script).is_long else []
        found.append(pytest.param(script, id=script.stem, marks=marks))
    return found


def output_of(script: Path, expected: Expected, folder: Path) -> tuple[int, str]:
    """Run a copy of the script in a folder of its own."""
    own = shutil.copy(script, folder / script.name)
    starter, *rest = expected.command
    command = [*STARTERS[starter], *(Path(own).name if word == "SCRIPT" else word for word in rest)]
    variables = {name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")}
    done = subprocess.run(
        command, cwd=folder, env=variables, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("script", scripts("wrong"))
def test_a_mistake_is_named_with_its_fix(script: Path, tmp_path: Path) -> None:
    expected = expected_of(script)
    code, output = output_of(script, expected, tmp_path)
    for part in expected.says:
        assert output.count(part) == 1, f"said {output.count(part)} times: {part}\n{output}"
    assert code == expected.code, output


@pytest.mark.parametrize("script", scripts("right"))
def test_a_right_script_is_not_warned(script: Path, tmp_path: Path) -> None:
    expected = expected_of(script)
    code, output = output_of(script, expected, tmp_path)
    assert code == expected.code, output
    assert "warning" not in output.lower(), output
    for part in expected.says:
        assert output.count(part) == 1, f"said {output.count(part)} times: {part}\n{output}"

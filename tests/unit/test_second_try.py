"""What `.ci/run` does with tests that fail, on a small project that has this one's conftest."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from support import second_try

TESTS = Path(__file__).parents[1]
STEADY = "def test_steady():\n    pass\n"
BROKEN = "def test_broken():\n    assert 1 == 2, 'always'\n"
UNLUCKY = """
from pathlib import Path
def test_unlucky():
    seen = Path("seen")
    if not seen.exists():
        seen.touch()
        raise AssertionError("only the first time")
"""
NEEDS_SETTING = """
import os
def test_needs_setting():
    assert os.environ["SHOAL_NATIVE"] == "0"
    assert False, "never with it"
"""


@dataclass(frozen=True)
class Project:
    root: Path

    @property
    def _environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if name not in ("CI", "SHOAL_NATIVE")}
        return kept | {second_try.FILE: str(self.root / "failed")}

    def run(self, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *words],
            cwd=self.root,
            env=self._environment | more,
            capture_output=True,
            text=True,
            check=False,
        )

    def suite(self, **more: str) -> subprocess.CompletedProcess[str]:
        return self.run("-m", "pytest", "-q", **more)

    def second_try(self) -> subprocess.CompletedProcess[str]:
        return self.run("tests/support/second_try.py", "failed")

    @property
    def flaky(self) -> str:
        return (self.root / "tests" / "flaky.md").read_text()


@pytest.fixture
def project(tmp_path: Path) -> Project:
    support = tmp_path / "tests" / "support"
    support.mkdir(parents=True)
    shutil.copy(TESTS / "conftest.py", tmp_path / "tests")
    shutil.copy(TESTS / "support" / "second_try.py", support)
    (tmp_path / "tests" / "flaky.md").touch()
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = tests\naddopts = --import-mode=importlib\n")
    return Project(tmp_path)


def test_what_passes_the_second_time_is_flaky_and_is_written_down(project: Project) -> None:
    (project.root / "tests" / "test_it.py").write_text(STEADY + UNLUCKY)
    first = project.suite()
    assert first.returncode == 0, first.stdout
    assert "1 failed: each gets a second try" in first.stdout
    second = project.second_try()
    assert second.returncode == 0, second.stdout
    assert "FLAKY: tests/test_it.py::test_unlucky" in second.stdout
    assert "only the first time" in second.stdout
    assert "test_steady" not in second.stdout
    assert "| `tests/test_it.py::test_unlucky` |" in project.flaky
    assert "only the first time" in project.flaky


def test_processes_side_by_side_write_a_failure_down_once(project: Project) -> None:
    (project.root / "tests" / "test_it.py").write_text(STEADY + BROKEN)
    assert project.run("-m", "pytest", "-q", "-n", "2").returncode == 0
    assert len((project.root / "failed").read_text().splitlines()) == 1


def test_what_fails_twice_fails(project: Project) -> None:
    (project.root / "tests" / "test_it.py").write_text(UNLUCKY + BROKEN)
    assert project.suite().returncode == 0
    second = project.second_try()
    assert second.returncode == 1
    assert "FAILED twice: tests/test_it.py::test_broken" in second.stdout
    assert "FLAKY" in second.stdout
    assert "test_broken" not in project.flaky


@pytest.mark.long
def test_a_second_try_has_the_settings_of_the_first(project: Project) -> None:
    (project.root / "tests" / "test_it.py").write_text(NEEDS_SETTING)
    assert project.suite(SHOAL_NATIVE="0").returncode == 0
    assert "SHOAL_NATIVE=0 tests/test_it.py::test_needs_setting: AssertionError: never with it" in (
        project.second_try().stdout
    )


@pytest.mark.long
def test_skips_crashes_and_errors_of_collection_fail_at_once(project: Project) -> None:
    test = project.root / "tests" / "test_it.py"
    test.write_text("import pytest\n@pytest.mark.skip\ndef test_left_out():\n    pass\n" + BROKEN)
    assert project.suite(CI="true").returncode != 0
    test.write_text("import os\ndef test_crash():\n    os._exit(3)\n")
    assert project.suite().returncode == 3
    test.write_text("import nothing_of_that_name\n")
    assert project.suite().returncode != 0


@pytest.mark.long
def test_many_failures_are_no_bad_luck(project: Project) -> None:
    (project.root / "tests" / "test_it.py").write_text(
        "import pytest\n@pytest.mark.parametrize('n', range(11))\ndef test_it(n):\n    assert False\n"
    )
    assert project.suite().returncode == 0
    second = project.second_try()
    assert second.returncode == 1
    assert "11 tests failed: too many for a second try" in second.stdout

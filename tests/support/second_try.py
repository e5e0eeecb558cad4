"""A second try for tests that failed under CI: one unlucky test must not cost a day, and must not be forgotten either.

With FAILED_TESTS set to a file, a session notes its failed tests there and ends as if they had passed (`note_failures`,
called by conftest). When everything else has run, `python tests/support/second_try.py FILE` runs each of them alone. A
test that passes then is printed as FLAKY with its first failure and gets a row in tests/flaky.md; a test that fails
again fails CI. What stops a session in another way (a crash, a skip, nothing collected) fails CI at once.
"""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

FILE = "FAILED_TESTS"  # the variable that names the file
MOST = 10  # tests; where more have failed, bad luck is not the reason
SETTINGS = ("SHOAL_NATIVE",)  # variables that a session was started with and a second try needs too
FLAKY = Path(__file__).parents[1] / "flaky.md"


@dataclass(frozen=True)
class Failure:
    test: str  # node id
    settings: dict[str, str]
    symptom: str  # the last line of the error
    report: str  # all that pytest printed about it

    @property
    def words(self) -> str:
        return " ".join([*(f"{name}={value}" for name, value in self.settings.items()), self.test])


def note_failures(session: pytest.Session, reports: Iterable[pytest.TestReport | pytest.CollectReport]) -> int:
    """Write down what failed, if somebody asked for that; says how many. The session then counts as passed."""
    path = os.environ.get(FILE)
    if not path or session.exitstatus != pytest.ExitCode.TESTS_FAILED:
        return 0
    settings = {name: os.environ[name] for name in SETTINGS if name in os.environ}
    found = {report.nodeid: report for report in reports}  # a test may fail, and then its clean-up
    with Path(path).open("a") as file:
        for report in found.values():
            text = report.longreprtext
            failure = Failure(report.nodeid, settings, symptom(text), text)
            file.write(json.dumps(asdict(failure)) + "\n")
    if found:
        session.exitstatus = pytest.ExitCode.OK
    return len(found)


def symptom(text: str) -> str:
    """The line of a report that says most: the first of the error, or the last line where pytest marks none."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    marked = [line[1:].strip() for line in lines if line.startswith("E ")]
    return (marked or lines[-1:] or ["no report"])[0][:200]


def try_again(failure: Failure, root: Path) -> bool:
    environment = {name: value for name, value in os.environ.items() if name != FILE} | failure.settings
    print(f"\n===== second try, alone: {failure.words}", flush=True)
    command = [sys.executable, "-m", "pytest", "-q", failure.test]
    return subprocess.run(command, cwd=root, env=environment, check=False).returncode == 0


def row(failure: Failure, day: datetime.date) -> str:
    test, what = (text.replace("|", "\\|").replace("`", "'") for text in (failure.words, failure.symptom))
    return f"| `{test}` | {day.isoformat()} | `{what}` | not known yet |\n"


def main(path: Path, *, root: Path, flaky: Path) -> int:
    lines = path.read_text().splitlines() if path.exists() else []
    failures = [Failure(**json.loads(line)) for line in lines]
    if not failures:
        return 0
    if len(failures) > MOST:
        print(f"{len(failures)} tests failed: too many for a second try (at most {MOST})")
        return 1
    passed = [failure for failure in failures if try_again(failure, root)]
    for failure in passed:
        print(f"\nFLAKY: {failure.words}: failed, then passed alone. The first failure:\n{failure.report}")
        with flaky.open("a") as file:
            file.write(row(failure, datetime.datetime.now(tz=datetime.UTC).date()))
    print()
    for failure in failures:
        verdict = "FLAKY (passed alone; noted in tests/flaky.md)" if failure in passed else "FAILED twice"
        print(f"{verdict}: {failure.words}: {failure.symptom}")
    return 0 if len(passed) == len(failures) else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), root=Path(__file__).parents[2], flaky=FLAKY))

"""What `shoal.main` does before a script runs: its settings, and whether anything follows its call."""

from __future__ import annotations

import contextlib
import io
import runpy
from pathlib import Path

import pytest

from shoal.entry import shoal_main
from shoal.errors import UsageError
from shoal.settings import texts

PROGRAM = """
import sys
from shoal.entry.shoal_main import ends_with

def main(*_):
    print(ends_with(sys._getframe(1)))
    return 7

def train():
    pass

"""


@pytest.mark.parametrize(
    ("text", "ends"),
    [
        ('if __name__ == "__main__":\n    main(train)', True),
        ("main(train)", True),
        ("result = main(train)", True),
        ("def begin():\n    return main(train)\nbegin()", True),
        ("def begin():\n    result = main(train)\nif True:\n    begin()\nelse:\n    print('x')", True),
        ("try:\n    main(train)\nexcept ValueError:\n    print('x')", True),
        ("main(train)\nprint('x')", False),
        ("def begin():\n    main(train)\nbegin()\nprint('x')", False),
        ("def begin():\n    main(train)\n    print('x')\nbegin()", False),
        ("sys.exit(main(train) - 7)", False),
        ("print(main(train))", False),
        ("with open(__file__):\n    main(train)", False),
        ("try:\n    main(train)\nfinally:\n    print('x')", False),
        ("for _ in range(1):\n    main(train)", False),
        (
            "import threading\nthread = threading.Thread(target=lambda: main(train))\nthread.start()\nthread.join()",
            False,
        ),
    ],
)
def test_what_follows_a_call_is_seen(tmp_path: Path, text: str, ends: bool) -> None:
    """In a script that is run as a spare worker runs it."""
    script = tmp_path / "script.py"
    script.write_text(PROGRAM + text + "\n")
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):
        runpy.run_path(str(script), run_name="__main__")
    assert out.getvalue().splitlines()[0] == str(ends)


def test_a_module_that_is_only_imported_is_not_the_end_of_a_script(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(PROGRAM + "main(train)\n")
    with contextlib.redirect_stdout(io.StringIO()) as out:
        runpy.run_path(str(tmp_path / "script.py"), run_name="helper")
    assert out.getvalue() == "False\n"


def test_settings_that_do_not_go_together_are_refused_where_a_script_runs_alone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as caught:
        shoal_main.main(lambda _run: pytest.fail("the script ran"), carrier="gloo", schedule="ring")
    assert caught.value.code == UsageError.exit_code
    assert texts.carrier_has_own_schedules("gloo", "ring", "identity") in capsys.readouterr().err

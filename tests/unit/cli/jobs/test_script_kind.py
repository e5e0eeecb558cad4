"""Which scripts are known to join a job before any of their processes has."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.cli.jobs.coordinator import imports_shoal

EXAMPLES = Path(__file__).parents[4] / "examples"


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_every_example_but_the_plain_torch_script_joins(path: Path) -> None:
    assert imports_shoal(path) is (path.stem != "torch_ddp")


@pytest.mark.parametrize(
    ("text", "joins"),
    [
        ("from shoal import main\n", True),
        ("def later():\n    import shoal.training.run as training\n", True),
        ("import shoals\nfrom . import shoal_like\n", False),
        ("print('import shoal')\n", False),
        ("import helper\n", True),
        ("from parts import of_it\n", True),
        ("from parts.of_it import train\n", True),
        ("import circle\n", False),
        ("def broken(:\n", False),
        ("", False),
    ],
)
def test_imports_are_found_in_the_script_and_in_modules_beside_it(tmp_path: Path, text: str, joins: bool) -> None:
    (tmp_path / "script.py").write_text(text)
    (tmp_path / "helper.py").write_text("import os\nimport shoal\n")
    (tmp_path / "circle.py").write_text("import script\nimport circle\n")
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts/__init__.py").write_text("")
    (tmp_path / "parts/of_it.py").write_text("import shoal\n")
    assert imports_shoal(tmp_path / "script.py") is joins


def test_a_script_that_is_not_there_tells_nothing(tmp_path: Path) -> None:
    assert not imports_shoal(tmp_path / "none.py")

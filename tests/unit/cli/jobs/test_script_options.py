"""Options of `shoal run` behind the script: told where they are a slip, left alone where they are the script's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.cli import texts
from shoal.cli.jobs.run import known_options, main, whole_command
from shoal.cli.jobs.script_options import in_order, misplaced, split_arguments
from shoal.cli.main import main as shoal_main
from shoal.errors import UsageError
from shoal.launching import texts as launching_texts
from shoal.launching.script_source import source_of


def found(text: str, *arguments: str, given: tuple[str, ...] = (), folder: Path) -> list[str]:
    script = folder / "train.py"
    script.write_text(text)
    behind, _ = split_arguments(arguments, known_options())
    return [option.name for option in misplaced(behind, given, source_of(script))]


@pytest.mark.parametrize(
    "arguments", [("-n", "2"), ("-n2",), ("--workers", "2"), ("--workers=2",), ("--lr", "0.1", "-n", "1:4")]
)
def test_a_number_of_workers_behind_the_script_is_noticed(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    assert len(found("import torch\n", *arguments, folder=tmp_path)) == 1


@pytest.mark.parametrize(
    "text",
    [
        "parser.add_argument('-n', type=int)\n",
        "@click.option('-n/--number')\n",
        'args = sys.argv\nif "-n" in args: pass\n',
        "print(args.workers)\n",
        "@dataclass\nclass Options:\n    workers: int = 2\n",
        '"""Usage: train.py -n N"""\nimport docopt\ndocopt.docopt(__doc__) # -n\n',
    ],
)
def test_an_option_that_the_script_mentions_is_its_own(tmp_path: Path, text: str) -> None:
    assert found(text, "-n", "2", folder=tmp_path) == []


def test_so_is_one_that_a_module_beside_the_script_mentions(tmp_path: Path) -> None:
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "words.py").write_text("parser.add_argument('-n', type=int)\n")
    assert found("from tools.words import parser\n", "-n", "2", folder=tmp_path) == []
    assert found("from tools import words\n", "-n", "2", folder=tmp_path) == []


def test_a_docstring_that_shows_the_command_is_no_option(tmp_path: Path) -> None:
    assert found('"""Use: shoal run -n 4 train.py"""\n', "-n", "2", folder=tmp_path) == ["-n"]


def test_an_option_that_stands_before_the_script_too_is_meant_for_it(tmp_path: Path) -> None:
    assert found("", "-n", "2", given=("workers",), folder=tmp_path) == []
    assert found("", "-n", "2", "--seed", "3", given=("workers",), folder=tmp_path) == ["--seed"]
    assert found("import sys\nprint(sys.argv)\n", "--seed", "3", folder=tmp_path) == []
    assert found("", "--", "-n", "2", folder=tmp_path) == []
    assert found("", "--help", "--epochs", "3", "-x", folder=tmp_path) == []


def test_the_better_command_line_has_our_options_first() -> None:
    known = known_options()
    assert in_order([], "train.py", ["--lr", "0.1", "-n", "2"], known) == "shoal run -n 2 train.py --lr 0.1"
    assert in_order(["--seed", "1"], "t.py", ["-n2", "--open"], known) == "shoal run --seed 1 -n2 --open t.py"
    assert whole_command(["train.py", "-n", "2"]) == "shoal run -n 2 train.py"
    assert whole_command(["-n", "2"]) == "shoal run -n 2 SCRIPT"


def test_the_command_ends_with_the_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("import torch\n")
    with pytest.raises(UsageError) as caught:
        main(["train.py", "-n", "2"])
    better, meant = "shoal run -n 2 train.py", "shoal run -- train.py -n 2"
    assert str(caught.value) == texts.behind_the_script("-n", "train.py", better, meant)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["train.py", "-n", "2"], texts.run_left_out("train.py", "shoal run -n 2 train.py")),
        (["-n", "2", "train.py"], texts.run_left_out("-n", "shoal run -n 2 train.py")),
        (["run", "-m", "tools.train", "--lr", "1"], texts.no_modules("tools.train", "shoal run tools/train.py --lr 1")),
        (["run", "-n2", "python", "train.py"], launching_texts.starter_given("python")),
        (["run", "/usr/bin/python3.11", "train.py"], launching_texts.starter_given("/usr/bin/python3.11")),
        (["run", "book.ipynb"], "the script book.ipynb is a notebook; call shoal.launch in it"),
    ],
)
def test_other_slips_are_answered_with_the_whole_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("book.ipynb").touch()
    assert shoal_main(arguments) == 2
    assert capsys.readouterr().err == f"shoal: error: {said}\n"


@pytest.mark.parametrize(
    ("typed", "near"), [("train", "train.py"), ("tools.train", "tools/train.py"), ("tran.py", "train.py")]
)
def test_a_script_that_is_not_there_has_a_neighbour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: str, near: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tools").mkdir()
    for file in ("train.py", "tools/train.py"):
        Path(file).touch()
    with pytest.raises(UsageError) as caught:
        main(["-n2", typed])
    assert str(caught.value) == launching_texts.script_missing(typed, near)

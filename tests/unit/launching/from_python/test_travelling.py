"""Which way a function takes to workers, and what their script makes of it."""

from __future__ import annotations

import json
import sys
import threading
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shoal.entry import function_script
from shoal.entry import texts as entry_texts
from shoal.entry.function_script import SCRIPT, FunctionCall, parsed, recorded_call, title_of
from shoal.errors import UsageError
from shoal.launching import texts
from shoal.launching.from_python import travelling as module
from shoal.launching.from_python.travelling import by_name, is_plain, pickled, travelling


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """An importable module with functions of all kinds."""
    (tmp_path / "lab_of_test.py").write_text(
        "def train(run, lr=0.1):\n    return run, lr\n\n"
        "class Trainer:\n    @staticmethod\n    def fit(run):\n        return run\n\n"
        "def make(scale):\n    def inner(run):\n        return run * scale\n    return inner\n\n"
        "nameless = lambda run: run\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "lab_of_test", raising=False)
    import lab_of_test

    return lab_of_test  # type: ignore[no-any-return]


def test_a_function_of_a_module_travels_by_its_name(lab: types.ModuleType, tmp_path: Path) -> None:
    with travelling(lab.train, {"lr": 0.5}) as way:
        assert way.script == SCRIPT
        assert way.private_files == ()
        call = parsed(way.arguments)
    assert (call.source, call.name, call.keywords, call.pickle) == ("lab_of_test", "train", {"lr": 0.5}, "")
    assert str(tmp_path) in call.folders
    assert function_script.found(call)(1) == (1, 0.5)
    assert by_name(lab.Trainer.fit, {}) == FunctionCall("Trainer.fit", "lab_of_test")


@pytest.mark.parametrize("pick", [lambda lab: lab.make(3), lambda lab: lab.nameless, lambda _: lambda run: 2 * run])
def test_what_has_no_name_of_its_own_travels_by_cloudpickle(
    lab: types.ModuleType, pick: Callable[[Any], Callable[..., Any]]
) -> None:
    function = pick(lab)
    with travelling(function, {}) as way:
        [file] = way.private_files
        assert file.stat().st_mode & 0o777 == 0o600
        assert file.parent.stat().st_mode & 0o777 == 0o700
        call = parsed(way.arguments)
        assert call.pickle == str(file)
        assert function_script.found(call)(7) == function(7)
    assert not file.parent.exists()
    with pytest.raises(UsageError, match="gone") as gone:
        function_script.found(call)
    assert str(gone.value) == entry_texts.function_gone(str(file))


def test_arguments_that_json_would_change_travel_by_cloudpickle(lab: types.ModuleType) -> None:
    for value in ((1, 2), float("nan"), Path("x"), 2**80, {1: 2}, b"x"):
        assert not is_plain({"lr": value})
        assert by_name(lab.train, {"lr": value}) is None
    with travelling(lab.train, {"lr": (1, 2)}) as way:
        assert function_script.found(parsed(way.arguments))(0) == (0, (1, 2))
    plain = {"a": [1, 2.5, "x", None, True, {"b": []}]}
    assert is_plain(plain)
    assert json.loads(json.dumps(plain)) == plain


def test_a_module_that_workers_would_not_find_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    made = types.ModuleType("module_of_nowhere")
    exec("def train(run):\n    return run + 1\n", made.__dict__)
    monkeypatch.setitem(sys.modules, made.__name__, made)
    assert by_name(made.train, {}) is None
    with travelling(made.train, {}) as way:
        monkeypatch.delitem(sys.modules, made.__name__)
        assert function_script.found(parsed(way.arguments))(1) == 2


def test_a_file_that_others_could_have_written_is_not_unpickled(lab: types.ModuleType) -> None:
    with travelling(lab.nameless, {}) as way:
        way.private_files[0].chmod(0o640)
        with pytest.raises(UsageError) as refused:
            function_script.found(parsed(way.arguments))
        assert str(refused.value) == entry_texts.function_not_private(str(way.private_files[0]))


def test_what_killed_programs_have_left_is_swept_and_what_is_in_use_stays(
    lab: types.ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with travelling(lab.nameless, {}) as way:
        [file] = way.private_files
        left = file.parent.with_name(f"{file.parent.name}-left")  # as if its launcher and the guardian were killed
        left.mkdir(mode=0o700)
        (left / file.name).write_bytes(b"x")
        with travelling(lab.make(2), {}):
            assert not left.exists()
            assert file.exists()


def test_mistakes_are_said_before_anything_starts(lab: types.ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        pytest.raises(UsageError, match=r"train\(run, lr=0.1\) cannot be called .* 'rate'"),
        travelling(lab.train, {"rate": 1}),
    ):
        pass
    lock = threading.Lock()
    with pytest.raises(UsageError, match=r"cannot travel to workers: .*lock"):
        pickled(lambda run: (run, lock), {})
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(UsageError) as missing:
        pickled(lambda run: run, {})
    assert str(missing.value) == texts.no_cloudpickle("lambda")
    assert "pip install 'shoal[notebook]'" in str(missing.value)


def test_a_script_is_imported_without_its_main_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "my-program.py"
    script.write_text(
        "FACTOR = 3\ndef train(run):\n    return run * FACTOR\nif __name__ == '__main__':\n    raise SystemExit(5)\n"
    )
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    call = parsed(FunctionCall("train", str(script)).as_arguments())
    assert function_script.found(call)(2) == 6


def test_a_function_of_the_program_itself_is_found_by_its_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "program.py"
    text = "def train(run):\n    return run\nif __name__ == '__main__':\n    def late(run):\n        return run\n"
    script.write_text(text)
    main = types.ModuleType("__main__")
    main.__file__ = str(script)
    exec(compile(text, str(script), "exec"), main.__dict__)
    monkeypatch.setitem(sys.modules, "__main__", main)
    assert by_name(main.train, {}) == FunctionCall("train", str(script))
    assert by_name(main.late, {}) is None  # a worker that imports the script does not get to it
    exec(compile(text, "<ipython-input-1>", "exec"), main.__dict__)  # a cell, in a kernel that has a `__file__`
    assert by_name(main.train, {}) is None


def test_jobs_are_called_after_their_functions() -> None:
    arguments = FunctionCall("Lab.train", "/home/me/x.py", {"lr": 1}).as_arguments()
    assert title_of(SCRIPT, arguments) == "train"
    assert title_of("train.py", ("a:b",)) == "train.py"
    assert recorded_call("train.py", arguments) is None


def test_installed_folders_are_not_sent_along(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "site-packages").mkdir()
    monkeypatch.setattr(sys, "path", ["", str(tmp_path), str(tmp_path / "site-packages"), "/no/such", *sys.path])
    folders = module.own_folders()
    assert folders[:2] == (str(Path.cwd()), str(tmp_path))
    assert not [folder for folder in folders if "site-packages" in folder or "lib-dynload" in folder]

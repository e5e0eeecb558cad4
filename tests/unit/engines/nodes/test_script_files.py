"""The Python files of a script's folder: which count, which limits there are, how two machines' differ."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.engines import texts
from shoal.engines.nodes import script_files
from shoal.engines.nodes.agent_messages import MOST_FOLDER_BYTES
from shoal.engines.nodes.script_files import is_inside, read_folder, seen_in
from shoal.errors import UsageError


def made(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    return folder


def test_python_files_below_the_folder_and_the_script_count_and_nothing_else(tmp_path: Path) -> None:
    left_out = (".git/hook.py", "venv/pyvenv.cfg", "venv/lib/a.py", "__pycache__/b.py", "data.csv", "runs/x/log")
    made(tmp_path, "train", "model.py", "parts/layers.py", *left_out)
    assert list(read_folder(tmp_path / "train").contents) == ["model.py", "train", "parts/layers.py"]


def test_a_difference_names_what_is_missing_and_what_is_only_there(tmp_path: Path) -> None:
    here = read_folder(made(tmp_path / "here", "train.py", "model.py", "same.py") / "train.py")
    there = made(tmp_path / "there", "train.py", "same.py", "old.py")
    (there / "train.py").write_text("another one")
    seen = seen_in(there, "train.py")
    assert here.missing_there(seen) == ["model.py", "train.py"]
    assert here.differing(seen) == ["model.py", "old.py", "train.py"]
    assert here.differing(here.files) == []


def test_a_folder_with_too_many_files_or_bytes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(tmp_path, "train.py", "model.py")
    with (tmp_path / "model.py").open("wb") as file:
        file.truncate(MOST_FOLDER_BYTES)
    with pytest.raises(UsageError) as raised:
        read_folder(tmp_path / "train.py")
    assert str(raised.value) == texts.folder_too_large(str(tmp_path), 2000, 64)
    (tmp_path / "model.py").unlink()
    made(tmp_path, *(f"part{number}.py" for number in range(9)))
    monkeypatch.setattr(script_files, "MOST_FILES", 9)
    with pytest.raises(UsageError):
        read_folder(tmp_path / "train.py")


@pytest.mark.parametrize("path", ["/etc/passwd", "../x.py", "a/../../x.py", "", "a\0.py"])
def test_a_path_that_leaves_the_folder_is_none_of_its_files(path: str) -> None:
    assert not is_inside(path)
    assert is_inside("parts/layers.py")

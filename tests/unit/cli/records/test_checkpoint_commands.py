"""`shoal checkpoints`, `shoal export`, `shoal import`, and which run a command means."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import nn

from shoal.checkpoint import texts as checkpoint_texts
from shoal.checkpoint.published import catalogue
from shoal.checkpoint.published.manifest import MANIFEST
from shoal.checkpoint.published.reader import read_state
from shoal.checkpoint.stores.local_store import LocalStore
from shoal.cli import texts as cli_texts
from shoal.cli.main import main
from shoal.disk import run_directory, texts
from shoal.disk.find_run import find_run
from shoal.errors import UsageError
from shoal.job_config import JobConfig
from shoal.watch.wording import amount
from support.checkpoints import publish, small_tree


class Tied(nn.Module):
    """The model of `small_tree`."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(40, 1000)
        self.head = nn.Linear(1000, 40, bias=False)
        self.head.weight = self.embed.weight
        self.scale = nn.Parameter(torch.tensor(0.0, dtype=torch.float64))
        self.register_buffer("phase", torch.zeros(3, 2, dtype=torch.complex64))
        self.register_buffer("cache", torch.zeros(5), persistent=False)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def make_run(name: str = "runs/job", **settings: Any) -> LocalStore:
    made = run_directory.create(JobConfig(run_dir=name, **settings), "train.py")
    made.lock.close()
    return LocalStore(made.path / "checkpoints")


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def shoal(capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(arguments)
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


# Listing


def test_a_listing_says_what_is_there(shoal: Run) -> None:
    store = make_run()
    publish(store, 100, mark="best")
    publish(store, 200)
    store.write("step-00000300-g1/part-0-of-2.safetensors", [b"x"])
    code, out, _ = shoal("checkpoints", "job")
    assert code == 0
    heading, newest, older, left = out.splitlines()
    assert heading.split()[0] == "checkpoint"
    assert newest.startswith("step-00000200-g1") and older.startswith("step-00000100-g1")
    size = amount(catalogue.load_manifest(store, "step-00000100-g1").size)
    for word in ("epoch 2, 6,400 samples", size, "best", "every 100 steps"):
        assert word in older
    assert "best" not in newest
    assert "step-00000300-g1" in left and "not published" in left


def test_json_has_all_of_it(shoal: Run) -> None:
    publish(make_run(), 100, mark="best")
    _, out, _ = shoal("checkpoints", "job", "--json")
    listing = json.loads(out)
    assert listing["place"] == "runs/job/checkpoints"
    [found] = listing["checkpoints"]
    assert (found["name"], found["step"], found["epoch"], found["position"]) == ("step-00000100-g1", 100, 1, 6400)
    assert (found["workers"], found["marks"], found["problems"]) == (2, ["best"], None)


def test_nothing_to_list(shoal: Run) -> None:
    make_run()
    assert shoal("checkpoints", "job") == (0, "no published checkpoint in runs/job/checkpoints\n", "")


def test_marks_are_set_moved_and_taken_away(shoal: Run) -> None:
    store = make_run()
    publish(store, 1)
    publish(store, 2)
    shoal("checkpoints", "job", "--mark", "step-00000001-g1=best")
    assert catalogue.marks(store) == {"best": "step-00000001-g1"}
    shoal("checkpoints", "job", "--mark", "best=keep")
    assert catalogue.marks(store) == {"best": "step-00000001-g1", "keep": "step-00000001-g1"}
    shoal("checkpoints", "job", "--unmark", "best", "--mark", "step-00000002-g1=keep")
    assert catalogue.marks(store) == {"keep": "step-00000002-g1"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--mark", "step-00000001-g1"), "NAME=LABEL"),
        (("--mark", "step-00000002-g1=best"), "did you mean 'step-00000001-g1'?"),
        (("--mark", "step-00000001-g1=a/b"), checkpoint_texts.bad_label("a/b")),
        (("--unmark", "none"), cli_texts.marks_nothing("none", ())),
        (("--verfy",), "did you mean '--verify'?"),
    ],
)
def test_mistakes_are_said(shoal: Run, options: tuple[str, ...], words: str) -> None:
    publish(make_run(), 1)
    code, out, err = shoal("checkpoints", "job", *options)
    assert (code, out) == (2, "")
    assert words in err


def test_verifying_finds_a_damaged_byte(shoal: Run) -> None:
    store = make_run()
    publish(store, 1)
    publish(store, 2)
    assert shoal("checkpoints", "job", "--verify")[0] == 0
    path = Path("runs/job/checkpoints/step-00000002-g1/part-1-of-2.safetensors")
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    assert shoal("checkpoints", "job")[0] == 0
    code, out, err = shoal("checkpoints", "job", "--verify")
    assert code == 9
    assert "step-00000002-g1/part-1-of-2.safetensors: " in out and "checksum" in out
    said = cli_texts.damaged(["step-00000002-g1"], 2, "runs/job/checkpoints", usable="step-00000001-g1")
    assert err == f"shoal: error: {said}\n"
    _, out, _ = shoal("checkpoints", "job", "--verify", "--json")
    assert [len(found["problems"]) for found in json.loads(out)["checkpoints"]] == [1, 0]


def test_a_damaged_manifest_is_listed_as_such(shoal: Run) -> None:
    store = make_run()
    store.write(f"{publish(store, 1)}/{MANIFEST}", [b"{"])
    code, out, _ = shoal("checkpoints", "job")
    assert code == 0 and f"damaged: step-00000001-g1/{MANIFEST}" in out
    code, _, err = shoal("checkpoints", "job", "--verify")
    assert code == 9 and cli_texts.damaged(["step-00000001-g1"], 1, "runs/job/checkpoints", usable=None) in err


def test_checkpoints_kept_elsewhere_are_found_by_the_runs_settings(shoal: Run, tmp_path: Path) -> None:
    make_run(checkpoint_to=str(tmp_path / "elsewhere"))
    publish(LocalStore(tmp_path / "elsewhere" / "job"), 5)
    assert "step-00000005-g1" in shoal("checkpoints", "job")[1]


def test_a_store_that_cannot_be_used_is_one_line(shoal: Run, tmp_path: Path) -> None:
    make_run()
    (tmp_path / "runs/job/checkpoints/marks").mkdir(parents=True)
    (tmp_path / "runs/job/checkpoints/marks/best").mkdir()
    code, _, err = shoal("checkpoints", "job")
    assert code == 9
    error = IsADirectoryError(errno.EISDIR, "Is a directory", "runs/job/checkpoints/marks/best")
    assert err == f"shoal: error: {cli_texts.checkpoints_unusable('runs/job/checkpoints', error)}\n"


# Export


@pytest.mark.parametrize("file_format", ["safetensors", "torch"])
def test_an_export_loads_into_the_model(shoal: Run, file_format: str) -> None:
    publish(make_run(), 3, tree=small_tree(2.5))
    code, out, _ = shoal("export", "job", "--format", file_format)
    assert code == 0 and "step-00000003-g1" in out
    file = "model.safetensors" if file_format == "safetensors" else "model.pt"
    loaded = safetensors.torch.load_file(file) if file_format == "safetensors" else torch.load(file, weights_only=True)
    model = Tied()
    assert set(loaded) == set(model.state_dict())
    model.load_state_dict(loaded)
    assert model.head.weight is model.embed.weight
    assert bool((model.embed.weight == 2.5).all()) and model.scale.item() == 2.5
    assert bool((model.phase == complex(2.5, -2.5)).all())
    assert sorted(path.name for path in Path().iterdir()) == sorted(["runs", file])


def test_a_checkpoint_is_chosen_by_name_or_mark(shoal: Run) -> None:
    store = make_run()
    for step in (1, 2, 3):
        publish(store, step, tree=small_tree(float(step)), mark="best" if step == 2 else "")
    for chosen, value in (("", 3.0), ("best", 2.0), ("step-00000001-g1", 1.0)):
        assert shoal("export", "job", "--checkpoint", chosen, "--to", "x/y.st", "--force")[0] == 0
        assert safetensors.torch.load_file("x/y.st")["scale"].item() == value
    code, _, err = shoal("export", "job", "--checkpoint", "bset", "--to", "z")
    assert code == 2 and "did you mean 'best'?" in err


def test_a_file_that_is_there_is_not_replaced_unless_asked(shoal: Run) -> None:
    publish(make_run(), 1)
    Path("model.safetensors").write_text("mine")
    code, _, err = shoal("export", "job")
    assert code == 2 and "--force" in err
    assert Path("model.safetensors").read_text() == "mine"
    assert shoal("export", "job", "--force")[0] == 0
    assert len(safetensors.torch.load_file("model.safetensors")) == 4


def test_several_models_get_a_file_each(shoal: Run) -> None:
    tree = small_tree()
    tree["models"]["model 2"] = {"w": torch.full((2,), 7.0)}
    tree["keys"]["model 2"] = {"w": "w"}
    publish(make_run(), 1, tree=tree)
    assert shoal("export", "job", "--to", "out.st")[0] == 0
    assert sorted(path.name for path in Path().glob("*.st")) == ["out-1.st", "out-2.st"]
    assert shoal("export", "job", "--model", "model 2", "--to", "only.st")[0] == 0
    assert set(safetensors.torch.load_file("only.st")) == {"w"}
    code, _, err = shoal("export", "job", "--model", "model 3", "--to", "none.st")
    assert code == 2 and "did you mean" in err


def test_what_the_format_lacks_is_named_with_a_way_out(shoal: Run) -> None:
    tree = small_tree()
    tree["models"]["model 1"]["scale"] = torch.zeros(2, dtype=torch.complex128)
    publish(make_run(), 1, tree=tree)
    code, _, err = shoal("export", "job")
    assert code == 2 and "complex128" in err and "--format torch" in err
    assert shoal("export", "job", "--format", "torch")[0] == 0
    assert torch.load("model.pt", weights_only=True)["scale"].dtype == torch.complex128


def test_a_damaged_checkpoint_is_not_exported(shoal: Run) -> None:
    publish(make_run(), 1)
    path = Path("runs/job/checkpoints/step-00000001-g1/part-0-of-2.safetensors")
    path.write_bytes(path.read_bytes()[:-9])
    code, _, err = shoal("export", "job")
    assert code == 9 and "part-0-of-2.safetensors" in err and "--checkpoint" in err
    assert not Path("model.safetensors").exists()


def test_a_run_without_checkpoints_has_nothing_to_export(shoal: Run) -> None:
    make_run()
    code, _, err = shoal("export", "job")
    assert code == 9 and cli_texts.none_published("runs/job/checkpoints") in err


# Import


@pytest.mark.parametrize("file_format", ["safetensors", "torch", "old torch"])
def test_an_imported_file_is_a_run_to_start_from(shoal: Run, file_format: str) -> None:
    weights = {"a.weight": torch.randn(3, 4), "b": torch.arange(5), "c": torch.tensor(1.5, dtype=torch.float64)}
    if file_format == "safetensors":
        safetensors.torch.save_file(weights, "in")
    else:
        torch.save(weights, "in", _use_new_zipfile_serialization=file_format == "torch")
    code, out, _ = shoal("import", "in", "runs/made")
    assert code == 0 and "shoal run --resume runs/made" in out
    store = LocalStore(Path("runs/made/checkpoints"))
    [listed] = catalogue.published(store)
    assert listed.name == "step-00000000-g0"
    manifest = catalogue.load_manifest(store, listed.name)
    assert (manifest.about.kind, manifest.about.reason) == ("weights", "imported from in")
    tree = read_state(store, manifest)
    assert tree["keys"] == {"model 1": {key: key for key in weights}}
    assert all(torch.equal(tree["models"]["model 1"][key], value) for key, value in weights.items())
    assert "weights only" in shoal("checkpoints", "made")[1]


def test_what_was_exported_can_be_imported_and_exported_again(shoal: Run) -> None:
    publish(make_run(), 1, tree=small_tree(4.0))
    shoal("export", "job", "--to", "one")
    assert shoal("import", "one", "runs/made")[0] == 0
    assert shoal("export", "made", "--to", "two")[0] == 0
    one, two = safetensors.torch.load_file("one"), safetensors.torch.load_file("two")
    assert one.keys() == two.keys() and all(torch.equal(one[key], two[key]) for key in one)


class Evil:
    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, ("touch evil",)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "No such file"),
        (b"", "neither a safetensors file nor"),
        (b"not a model at all", "neither a safetensors file nor"),
        ((50).to_bytes(8, "little") + b"{ nothing", checkpoint_texts.damaged_safetensors("in", "")),
        ({"model": {"a": torch.zeros(1)}, "epoch": 3}, "dict under 'model'"),
        (torch.zeros(3), checkpoint_texts.no_state_dict("in", "Tensor")),
        ({}, checkpoint_texts.no_state_dict("in", "dict")),
        ({"a": Evil()}, "neither a safetensors file nor"),
    ],
)
def test_a_file_that_is_no_model_makes_no_run(shoal: Run, content: object, words: str) -> None:
    if isinstance(content, bytes):
        Path("in").write_bytes(content)
    elif content is not None:
        torch.save(content, "in")
    code, _, err = shoal("import", "in", "runs/made")
    assert code == 2 and words in err and len(err.splitlines()) == 1
    assert not Path("runs").exists() and not Path("evil").exists()


def test_a_run_directory_that_is_there_is_left_alone(shoal: Run) -> None:
    make_run("runs/job")
    torch.save({"a": torch.zeros(1)}, "in")
    code, _, err = shoal("import", "in", "runs/job")
    assert code == 7 and "already there" in err
    assert not Path("runs/job/checkpoints").exists()


# Which run


def test_a_run_is_found_by_path_name_beginning_or_last(tmp_path: Path) -> None:
    for number, name in enumerate(["runs/20260101-a", "runs/20260102-b", "elsewhere/c", "runs/b"]):
        make_run(name)
        os.utime(f"{name}/config.toml", (1000 - number, 1000 - number))
    assert find_run("runs/20260101-a") == Path("runs/20260101-a")
    assert find_run("elsewhere/c/") == Path("elsewhere/c")
    assert find_run(str(tmp_path / "elsewhere/c")) == tmp_path / "elsewhere/c"
    assert find_run("20260102-b") == Path("runs/20260102-b")
    assert find_run("20260102") == Path("runs/20260102-b")
    assert find_run("b") == Path("runs/b")
    assert find_run("last") == Path("runs/20260101-a")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("2026", "beginning of 2 runs: 20260101-a, 20260102-a"),
        ("20260103-a", "did you mean '2026010"),
        ("", texts.no_run("", "")),
        ("runs", texts.no_run_directory("runs", "config.toml")),
        ("../../etc", "there is no run"),
    ],
)
def test_a_run_that_is_not_there_is_said(text: str, words: str) -> None:
    for name in ("runs/20260101-a", "runs/20260102-a"):
        make_run(name)
        os.utime(f"{name}/config.toml", (0, 0) if "0102" in name else (1, 1))
    with pytest.raises(UsageError, match=words):
        find_run(text)


def test_without_any_run_the_folder_is_named() -> None:
    with pytest.raises(UsageError, match="none under runs/"):
        find_run("last")

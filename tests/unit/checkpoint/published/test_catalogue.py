"""What is in a store: order, marks, what may go, and damage that is found wherever it is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some

from shoal.checkpoint import texts
from shoal.checkpoint.published import catalogue
from shoal.checkpoint.published.manifest import MANIFEST, checkpoint_name
from shoal.checkpoint.stores.local_store import LocalStore
from shoal.errors import CheckpointUnusable, UsageError
from support.checkpoints import publish, write_parts

NAMES = some.lists(
    some.builds(checkpoint_name, some.integers(0, 50), some.integers(1, 4)) | some.sampled_from(["marks", "other"]),
    unique=True,
    max_size=12,
)


@given(NAMES, some.data(), some.integers(1, 5))
def test_the_newest_and_the_marked_are_kept_and_nothing_else(
    names: list[str], data: some.DataObject, keep: int
) -> None:
    marked = set(data.draw(some.lists(some.sampled_from(names)))) if names else set()
    checkpoints = [name for name in names if name.startswith("step-")]
    gone = catalogue.to_remove(names, marked, keep)
    left = set(names) - set(gone)
    assert len(gone) == len(set(gone)) and set(gone) <= set(checkpoints) - marked
    newest = sorted(checkpoints, key=place)[-keep:]
    assert left == set(newest) | marked | (set(names) - set(checkpoints))
    assert gone == sorted(gone, key=place), "the oldest should go first"


def place(name: str) -> tuple[int, int]:
    step, generation = name.removeprefix("step-").split("-g")
    return int(generation), int(step)


def test_a_later_generation_is_newer_than_a_later_step(tmp_path: Path) -> None:
    """A job that had to go back from a damaged checkpoint goes on from the older one: that is the newest state."""
    store = LocalStore(tmp_path)
    for step, generation in ((100, 1), (300, 1), (200, 2), (90, 11)):
        publish(store, step, generation)
    write_parts(store, 400, 12)
    store.write("notes/file", [b"x"])
    listed = [(found.step, found.generation) for found in catalogue.published(store)]
    assert listed == [(90, 11), (200, 2), (300, 1), (100, 1)]
    assert catalogue.unpublished(store) == ["step-00000400-g12"]
    assert catalogue.last_generation(store) == 12


def test_an_empty_store_has_nothing(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "nothing")
    assert catalogue.published(store) == [] and catalogue.unpublished(store) == []
    assert catalogue.last_generation(store) == 0
    assert catalogue.marks(store) == {}
    with pytest.raises(
        CheckpointUnusable,
        match=f"^{texts.not_published('step-00000001-g1/manifest.json', store.place, 'step-00000001-g1')}",
    ):
        catalogue.load_manifest(store, "step-00000001-g1")


def test_marks_move_and_go(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    catalogue.set_mark(store, "best", "step-00000001-g1")
    catalogue.set_mark(store, "best", "step-00000002-g1")
    catalogue.set_mark(store, "v1.0", "step-00000001-g1")
    store.write("marks/nonsense", [b"\xff" * 500])
    assert catalogue.marks(store) == {"best": "step-00000002-g1", "v1.0": "step-00000001-g1"}
    catalogue.remove_mark(store, "best")
    catalogue.remove_mark(store, "best")
    assert catalogue.marks(store) == {"v1.0": "step-00000001-g1"}


@pytest.mark.parametrize("label", ["", "..", "a/b", "-x", "ü", "x" * 65])
def test_labels_that_are_no_file_names_are_refused(tmp_path: Path, label: str) -> None:
    for action in (
        catalogue.check_label,
        lambda text: catalogue.set_mark(LocalStore(tmp_path), text, "step-00000001-g1"),
    ):
        with pytest.raises(UsageError, match=re.escape(texts.bad_label(label))):
            action(label)


def test_a_whole_checkpoint_has_no_problem(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    manifest = catalogue.load_manifest(store, publish(store, 1))
    assert catalogue.verify(store, manifest) == []
    assert manifest.size == sum(path.stat().st_size for path in tmp_path.glob("*/*.safetensors"))


def test_every_damaged_byte_is_found_and_named(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    name = publish(store, 1)
    manifest = catalogue.load_manifest(store, name)
    for entry in manifest.files:
        path = tmp_path / name / entry.name
        whole = path.read_bytes()
        start = 8 + int.from_bytes(whole[:8], "little")
        for place in {0, 7, start // 2, start, start + 1, (start + len(whole)) // 2, len(whole) - 1}:
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
            problems = catalogue.verify(store, manifest)
            if place >= start:
                assert [problem.file for problem in problems] == [f"{name}/{entry.name}"], place
                assert problems[0].tensor and "checksum" in problems[0].text
            elif not problems:  # a header may change where the manifest does not rely on it: in its own index
                assert b'"shoal"' in whole[:place]
        path.write_bytes(whole)
    assert catalogue.verify(store, manifest) == []


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda path: path.unlink(), texts.MISSING),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), "bytes"),
        (lambda path: path.write_bytes(b""), "has 0 bytes"),
        (lambda path: path.write_bytes(bytes(path.stat().st_size)), "would have 0 bytes"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, damage: object, words: str) -> None:
    store = LocalStore(tmp_path)
    name = publish(store, 1)
    manifest = catalogue.load_manifest(store, name)
    assert callable(damage)
    damage(tmp_path / name / manifest.files[1].name)
    [problem] = catalogue.verify(store, manifest)
    assert (problem.file, problem.tensor) == (f"{name}/{manifest.files[1].name}", "")
    assert words in problem.text


def test_files_of_another_checkpoint_do_not_fit(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    name, other = publish(store, 1), publish(store, 2, tree={"models": {}, "keys": {}, "x": [1, 2]})
    manifest = catalogue.load_manifest(store, name)
    file = manifest.files[0].name
    foreign = bytes(store.read(f"{other}/{file}"))
    store.write(f"{name}/{file}", [foreign, bytes(manifest.files[0].size - len(foreign))])
    assert any("header" in problem.text for problem in catalogue.verify(store, manifest))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"part-0-of-2.safetensors"', b'"../../../etc/passwd"'),
        (b'"format": 1', b'"format": 2'),
        (b"step-00000001-g1", b"step-00000009-g1"),
        (b'"offset": [\n', b'"offset": [1,\n'),
        (b'"size": ', b'"size": -'),
        (b"{", b"["),
        (b"step-00000001-g1", b"step-0000000\xff-g1"),
        (b'"every 100 steps"', b"[" * 100_000),
    ],
)
def test_a_manifest_that_says_something_else_is_refused(tmp_path: Path, old: bytes, new: bytes) -> None:
    store = LocalStore(tmp_path)
    name = publish(store, 1)
    text = (tmp_path / name / MANIFEST).read_bytes()
    assert old in text
    (tmp_path / name / MANIFEST).write_bytes(text.replace(old, new))
    with pytest.raises(CheckpointUnusable, match=f"^{name}/{MANIFEST}"):
        catalogue.verify(store, catalogue.load_manifest(store, name))

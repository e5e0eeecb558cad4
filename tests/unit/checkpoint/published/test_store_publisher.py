"""Publishing: the manifest comes last, the old goes after it, and parts that do not fit are never published."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from shoal.checkpoint import texts
from shoal.checkpoint.published import catalogue
from shoal.checkpoint.published.manifest import MANIFEST
from shoal.checkpoint.published.reader import read_state
from shoal.checkpoint.published.store_publisher import StorePublisher
from shoal.checkpoint.stores.local_store import LocalStore
from shoal.checkpoint.stores.store import Buffer
from shoal.errors import CheckpointUnusable, UsageError
from shoal.membership.publisher import PublishRequest
from support.checkpoints import publish, small_tree, write_parts


class Recording(LocalStore):
    """A real folder that tells what was done to it, and fails where it is told to."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.done: list[str] = []
        self.fails_at = ""

    def write(self, name: str, chunks: Iterable[Buffer]) -> None:
        self._note(f"write {name}")
        super().write(name, chunks)

    def remove(self, name: str) -> None:
        self._note(f"remove {name}")
        super().remove(name)

    def _note(self, action: str) -> None:
        self.done.append(action)
        if action == self.fails_at:
            raise OSError(28, "No space left on device", action)


@pytest.fixture
def store(tmp_path: Path) -> Recording:
    return Recording(tmp_path)


def names(store: LocalStore) -> list[str]:
    return [listed.name for listed in catalogue.published(store)]


@pytest.mark.parametrize("world_size", [1, 2, 5])
def test_a_published_checkpoint_is_the_state_that_was_written(store: Recording, world_size: int) -> None:
    request = write_parts(store, 7, 1, world_size, tree=small_tree(3.0))
    assert names(store) == []
    outcome = StorePublisher(store, keep=1).publish(request)
    manifest = catalogue.load_manifest(store, "step-00000007-g1")
    assert outcome.size == manifest.size == sum(store.size(f"step-00000007-g1/{file}") for file in request.files)
    assert outcome.removed == ()
    model = read_state(store, manifest)["models"]["model 1"]
    assert all(bool((model[name] == tensor).all()) for name, tensor in small_tree(3.0)["models"]["model 1"].items())


def test_the_old_is_removed_after_the_new_is_published_its_manifest_first(store: Recording) -> None:
    publish(store, 1)
    request = write_parts(store, 2, 1)
    store.done.clear()
    outcome = StorePublisher(store, keep=1).publish(request)
    assert outcome.removed == ("step-00000001-g1",)
    assert store.done == [
        f"write step-00000002-g1/{MANIFEST}",
        f"remove step-00000001-g1/{MANIFEST}",
        "remove step-00000001-g1",
    ]
    assert store.names() == ["step-00000002-g1"]


def test_marked_ones_stay_and_a_mark_that_moves_lets_go(store: Recording) -> None:
    publish(store, 1, keep=1, mark="best")
    publish(store, 2, keep=1)
    publish(store, 3, keep=1)
    assert names(store) == ["step-00000003-g1", "step-00000001-g1"]
    publish(store, 4, keep=1, mark="best")
    assert names(store) == ["step-00000004-g1"]
    assert catalogue.marks(store) == {"best": "step-00000004-g1"}


def test_a_job_that_went_back_does_not_remove_what_it_has_just_published(store: Recording) -> None:
    publish(store, 300, 1)
    publish(store, 250, 2, keep=1)
    assert names(store) == ["step-00000250-g2"]


@pytest.mark.parametrize(
    "failing", ["remove step-00000001-g1", f"remove step-00000001-g1/{MANIFEST}", "write marks/best"]
)
def test_what_fails_afterwards_does_not_undo_the_publication(
    store: Recording, failing: str, capsys: pytest.CaptureFixture[str]
) -> None:
    publish(store, 1)
    request = write_parts(store, 2, 1, mark="best")
    store.fails_at = failing
    outcome = StorePublisher(store, keep=1).publish(request)
    assert outcome.removed == ()
    assert names(store)[0] == "step-00000002-g1"
    assert "No space left on device" in capsys.readouterr().err
    store.fails_at = ""
    publish(store, 3, keep=1)
    assert "step-00000001-g1" not in names(store)


def test_a_manifest_that_cannot_be_written_leaves_the_old_one(store: Recording) -> None:
    publish(store, 1)
    request = write_parts(store, 2, 1)
    store.fails_at = f"write step-00000002-g1/{MANIFEST}"
    with pytest.raises(OSError, match="No space left"):
        StorePublisher(store, keep=1).publish(request)
    assert names(store) == ["step-00000001-g1"]
    StorePublisher(store, keep=1).discard("step-00000002-g1")
    assert store.names() == ["step-00000001-g1"]


@pytest.mark.parametrize("part", [0, 1])
@pytest.mark.parametrize("damage", ["missing", "empty", "short", "garbage", "long"])
def test_damaged_parts_are_not_published(store: Recording, tmp_path: Path, part: int, damage: str) -> None:
    request = write_parts(store, 1, 1)
    path = tmp_path / request.checkpoint / request.files[part]
    whole = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes({"empty": b"", "short": whole[:-1], "garbage": b"x" * 100, "long": whole + b"x"}[damage])
    with pytest.raises((CheckpointUnusable, FileNotFoundError), match=request.files[part]):
        StorePublisher(store, keep=1).publish(request)
    assert names(store) == []


def test_parts_of_different_checkpoints_are_not_published(store: Recording) -> None:
    one, other = write_parts(store, 1, 1, world_size=2), write_parts(store, 1, 2, world_size=3)
    swapped = store.read(f"{other.checkpoint}/{other.files[1]}")
    store.write(f"{one.checkpoint}/{one.files[1]}", [swapped])
    with pytest.raises(CheckpointUnusable, match="part-1-of-2"):
        StorePublisher(store, keep=1).publish(one)
    lacking = PublishRequest(checkpoint=other.checkpoint, files=other.files[:2], mark="")
    with pytest.raises(CheckpointUnusable, match=texts.not_whole(".*")):
        StorePublisher(store, keep=1).publish(lacking)
    assert names(store) == []


def test_a_label_that_is_no_file_name_is_refused_before_anything_is_written(store: Recording) -> None:
    request = write_parts(store, 1, 1, mark="a/b")
    with pytest.raises(UsageError, match="'a/b'"):
        StorePublisher(store, keep=1).publish(request)
    assert names(store) == []


def test_discarding_and_cleaning_leave_published_ones_alone(store: Recording) -> None:
    published = publish(store, 1)
    for step in (2, 3, 4):
        write_parts(store, step, 1)
    publisher = StorePublisher(store, keep=1)
    publisher.discard(published)
    publisher.discard("step-00000002-g1")
    publisher.discard("step-00000099-g1")
    assert store.names() == [published, "step-00000003-g1", "step-00000004-g1"]
    publisher.clean()
    assert store.names() == [published]


def test_what_was_just_published_is_never_removed(store: Recording) -> None:
    publish(store, 300, 3)
    assert publish(store, 100, 1, keep=1) in names(store)


def test_a_part_that_does_not_fit_its_own_index_is_not_published(store: Recording) -> None:
    request = write_parts(store, 1, 1, world_size=1)
    path = f"{request.checkpoint}/{request.files[0]}"
    part = bytes(store.read(path))
    assert part.count(b'"dtype":"F32","shape":[7]') == 1
    store.write(path, [part.replace(b'"dtype":"F32","shape":[7]', b'"dtype":"I32","shape":[7]')])
    with pytest.raises(
        CheckpointUnusable, match=texts.does_not_fit_its_index(request.files[0], ".*momentum", "is I32")
    ):
        StorePublisher(store, keep=1).publish(request)
    assert names(store) == []


def test_what_could_not_be_removed_goes_with_the_next_publication(store: Recording) -> None:
    """Parts of a lost checkpoint, and of an old one whose removal was interrupted; not those that are being written."""
    write_parts(store, 1, 1)
    publisher = StorePublisher(store, keep=1)
    publish(store, 2, 1)
    store.remove(f"step-00000002-g1/{MANIFEST}")
    write_parts(store, 9, 1)
    publisher.publish(write_parts(store, 5, 1))
    assert names(store) == ["step-00000005-g1"]
    assert catalogue.unpublished(store) == ["step-00000009-g1"]

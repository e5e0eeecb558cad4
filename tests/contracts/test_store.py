"""What every store promises: a folder, a file system of fsspec's in memory, and a real S3 server."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some

from shoal.checkpoint.stores.local_store import LocalStore
from shoal.checkpoint.stores.opening import FullDiskStore
from shoal.checkpoint.stores.remote_store import BLOCK, RemoteStore
from shoal.checkpoint.stores.store import Buffer, Store
from support.object_store import BUCKET, ObjectStore, object_store


@pytest.fixture(scope="module")
def server() -> Iterator[ObjectStore]:
    with object_store() as started:
        yield started


@pytest.fixture(params=["folder", "memory", "s3", "folder that may be filled"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: ObjectStore) -> str:
    """Where the test's own store is; every one is empty at first."""
    for name, value in server.variables.items():
        monkeypatch.setenv(name, value)
    name = secrets.token_hex(8)
    return {
        "folder": str(tmp_path / "made"),
        "folder that may be filled": f"full:{tmp_path}/made",
        "memory": f"memory://{name}",
        "s3": f"s3://{BUCKET}/{name}",
    }[request.param]


def opened(place: str) -> Store:
    if place.startswith("full:"):
        return FullDiskStore(LocalStore(Path(place.removeprefix("full:"))), is_full=lambda: False)
    return RemoteStore(place) if "://" in place else LocalStore(Path(place))


@pytest.fixture
def store(place: str) -> Store:
    return opened(place)


def failing(*chunks: bytes) -> Iterator[Buffer]:
    yield from chunks
    raise OSError("the source of the bytes failed")


@pytest.mark.parametrize(
    "sizes",
    [(), (0,), (5, 0, 7), (BLOCK,), (BLOCK - 1, 1, 1), pytest.param((3 * BLOCK // 2, BLOCK), marks=pytest.mark.long)],
)
def test_what_was_written_is_read(store: Store, sizes: tuple[int, ...]) -> None:
    chunks = [secrets.token_bytes(size) for size in sizes]
    store.write("a/b", [memoryview(chunk) for chunk in chunks])
    assert bytes(store.read("a/b")) == b"".join(chunks)
    assert store.size("a/b") == sum(sizes)


def test_any_stretch_of_a_file_can_be_read(store: Store) -> None:
    data = secrets.token_bytes(100)
    store.write("file", [data])

    @settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
    @given(some.integers(0, 120), some.none() | some.integers(0, 120))
    def check(start: int, end: int | None) -> None:
        assert bytes(store.read("file", start, end)) == data[start:end]

    check()


def test_a_file_is_replaced_as_a_whole(store: Store) -> None:
    store.write("file", [b"a long text"])
    store.write("file", [b"short"])
    assert bytes(store.read("file")) == b"short"


def test_what_is_not_there(store: Store) -> None:
    assert store.names() == []
    assert store.names("nowhere") == []
    store.remove("nowhere")
    store.write("folder/file", [b"x"])
    store.remove("folder/other")
    for name in ("nowhere", "folder/nowhere", "folder"):
        with pytest.raises(FileNotFoundError):
            store.size(name)
    for name in ("nowhere", "folder/nowhere"):
        with pytest.raises(FileNotFoundError):
            store.read(name)


def test_names_are_those_directly_below(store: Store) -> None:
    for name in ("b/2", "b/1", "b/deep/er", "a/1", "top"):
        store.write(name, [b"x"])
    assert store.names() == ["a", "b", "top"]
    assert store.names("b") == ["1", "2", "deep"]
    assert store.names("b/deep") == ["er"]


def test_a_folder_is_removed_with_all_in_it_and_nothing_else(store: Store) -> None:
    for name in ("step-1/a", "step-1/b/c", "step-10/a", "step"):
        store.write(name, [b"x"])
    store.remove("step-1")
    assert store.names() == ["step", "step-10"]
    store.remove("step")
    store.remove("step-10/a")
    assert store.names("step-10") == []


@pytest.mark.parametrize("size", [100, 2 * BLOCK])
def test_of_a_write_that_fails_nothing_is_left(store: Store, size: int) -> None:
    with pytest.raises(OSError, match="the source of the bytes failed"):
        store.write("folder/new", failing(b"x" * size))
    assert store.names("folder") == []
    store.write("folder/old", [b"old"])
    with pytest.raises(OSError, match="the source of the bytes failed"):
        store.write("folder/old", failing(b"x" * size))
    assert bytes(store.read("folder/old")) == b"old"
    assert store.names("folder") == ["old"]


def test_what_another_process_does_is_seen_at_once(place: str) -> None:
    one, other = opened(place), opened(place)
    assert one.names("folder") == []
    other.write("folder/file", [b"first"])
    assert (one.names("folder"), one.size("folder/file")) == (["file"], 5)
    other.write("folder/file", [b"second"])
    assert (bytes(one.read("folder/file")), one.size("folder/file")) == (b"second", 6)
    other.remove("folder")
    assert one.names() == []


@pytest.mark.parametrize(
    "name", ["", "/etc/passwd", "..", "a/../b", "a//b", "a/", ".hidden", "a\\b", "a\0b", "x" * 1025]
)
def test_names_that_lead_elsewhere_are_refused(store: Store, name: str) -> None:
    for action in (lambda: store.write(name, [b"x"]), lambda: store.read(name), lambda: store.remove(name)):
        with pytest.raises(ValueError, match="is no name of a file"):
            action()

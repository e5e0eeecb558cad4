"""Checkpoints in a real S3 server whose connections fail: throttled, cut in the middle, gone for good."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator

import pytest

from shoal.checkpoint.published import catalogue
from shoal.checkpoint.published.reader import read_state
from shoal.checkpoint.stores.remote_store import BLOCK, RemoteStore
from shoal.errors import UsageError
from support.checkpoints import publish, small_tree, write_parts
from support.object_store import BUCKET, Faults, ObjectStore, object_store

BIG = secrets.token_bytes(BLOCK + BLOCK // 2)


@pytest.fixture(scope="module")
def started() -> Iterator[ObjectStore]:
    with object_store() as found:
        yield found


@pytest.fixture
def server(started: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    for name, value in started.variables.items():
        monkeypatch.setenv(name, value)
    started.proxy.faults = Faults()
    return started


@pytest.fixture
def store(server: ObjectStore) -> RemoteStore:
    return RemoteStore(f"s3://{BUCKET}/{secrets.token_hex(8)}", patience=20)


def test_throttled_requests_are_made_again(server: ObjectStore, store: RemoteStore) -> None:
    actions: list[Callable[[], object]] = [
        lambda: store.write("a/small", [b"small"]),
        lambda: store.names("a"),
        lambda: store.size("a/small"),
        lambda: store.read("a/small"),
        lambda: store.remove("a"),
    ]
    results = []
    for action in actions:
        server.faults.throttle = 1
        results.append(action())
        assert server.faults.throttle == 0, "the fault did not happen"
    assert results[1:4] == [["small"], 5, b"small"]
    assert store.names() == []


@pytest.mark.long
def test_an_upload_throttled_several_times_is_whole(server: ObjectStore, store: RemoteStore) -> None:
    server.faults.throttle = 2
    store.write("big", [BIG])
    assert server.faults.throttle == 0
    assert store.read("big") == BIG


def test_an_upload_that_is_cut_goes_on_with_the_part_that_was_lost(server: ObjectStore, store: RemoteStore) -> None:
    server.faults.cut_uploads = 1
    store.write("big", [BIG])
    assert server.faults.cut_uploads == 0
    assert store.read("big") == BIG
    parts = [line for line in server.faults.seen if "partNumber=1" in line]
    assert len(parts) == 2


@pytest.mark.long
def test_a_download_that_is_cut_is_made_again(server: ObjectStore, store: RemoteStore) -> None:
    store.write("big", [BIG])
    server.faults.cut_downloads = 1
    assert store.read("big") == BIG
    assert server.faults.cut_downloads == 0


def test_an_upload_that_cannot_be_finished_leaves_nothing_and_costs_nothing(server: ObjectStore) -> None:
    store = RemoteStore(f"s3://{BUCKET}/{secrets.token_hex(8)}", patience=1)
    server.faults.cut_uploads = 1000
    with pytest.raises(OSError, match="big") as caught:
        store.write("big", [BIG])
    assert caught.value.filename == f"{store.place}/big"
    server.faults.cut_uploads = 0
    assert store.names() == []
    assert server.uploads_under_way() == 0  # an upload that is not aborted is stored and paid for
    assert any(line.startswith("DELETE") and "uploadId" in line for line in server.faults.seen)


def test_a_store_that_is_gone_fails_with_its_place_and_in_bounded_time(server: ObjectStore) -> None:
    store = RemoteStore(f"s3://{BUCKET}/gone", patience=0.5)
    server.faults.is_gone = True
    began = time.monotonic()
    for action in (lambda: store.write("a", [b"x"]), lambda: store.write("a", [BIG]), lambda: store.read("a")):
        with pytest.raises(OSError, match="s3://bucket/gone/a"):
            action()
    with pytest.raises(OSError, match="s3://bucket/gone"):
        store.names()
    assert time.monotonic() - began < 60  # an upper bound far above what it takes, not a measurement
    server.faults.is_gone = False
    assert store.names() == []


def test_a_bucket_that_is_not_there_is_named(server: ObjectStore) -> None:
    store = RemoteStore("s3://no-such-bucket/run")
    with pytest.raises(FileNotFoundError, match="s3://no-such-bucket/run/a"):
        store.write("a", [b"x"])


def test_a_checkpoint_in_a_throttled_store_is_whole(server: ObjectStore, store: RemoteStore) -> None:
    name = publish(store, 100)
    server.faults.throttle = 1
    newer = publish(store, 200, keep=1, tree=small_tree(2.0))
    assert [listed.name for listed in catalogue.published(store)] == [newer]
    assert store.names(name) == []
    manifest = catalogue.load_manifest(store, newer)
    assert catalogue.verify(store, manifest) == []
    assert read_state(store, manifest)["models"]["model 1"]["scale"] == 2.0
    write_parts(store, 300, 2)
    assert catalogue.unpublished(store) == ["step-00000300-g2"]
    assert catalogue.last_generation(store) == 2


@pytest.mark.parametrize(("url", "words"), [("nosuch://x", "nosuch"), ("gs://bucket/x", "gcsfs")])
def test_a_place_that_needs_what_is_not_here_is_refused(url: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        RemoteStore(url)


def test_a_password_in_the_url_is_not_shown() -> None:
    assert RemoteStore("memory://user:secret@place/x").place == "memory://place/x"

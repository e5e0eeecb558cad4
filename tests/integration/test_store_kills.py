"""SIGKILL at any moment of writing and publishing: the last checkpoint that was said to be published is whole.

The processes here write and publish as workers and coordinator do, without torch, so that many moments can be tried.
"""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from shoal.checkpoint.published.catalogue import load_manifest, published, unpublished, verify
from shoal.checkpoint.published.store_publisher import StorePublisher
from shoal.checkpoint.stores.local_store import LocalStore

KEEP = 2
WRITER = """
import sys, time
import msgspec, numpy
from pathlib import Path
from shoal.checkpoint.stores.local_store import LocalStore
from shoal.checkpoint.published.manifest import INDEX_KEY, About, PartIndex, StoredSlice, TensorEntry
from shoal.checkpoint.published.manifest import checkpoint_name, part_name
from shoal.checkpoint.parts.part_file import StoredTensor, encode_header
from shoal.checkpoint.published.store_publisher import StorePublisher
from shoal.membership.publisher import PublishRequest
from shoal.values import Address, Cursor, Generation, Member
import xxhash

store = LocalStore(Path(sys.argv[1]))
generation_number = int(sys.argv[2])
publisher = StorePublisher(store, keep=KEEP)
members = tuple(Member(rank=r, worker=r, host="h", process=1, address=Address("127.0.0.1", 1)) for r in range(2))
generation = Generation(number=generation_number, members=members, schedule="ring", codec="identity", reason="test")
ROWS = 256 * 1024  # bytes of one part

for step in range(1, 10_000):
    name = checkpoint_name(step, generation_number)
    tree = msgspec.json.encode({"type": "dict", "items": [["t", {"type": "tensor", "number": 0, "shape": [2, ROWS],
                                                                 "dtype": "uint8"}]]})
    about = About(kind="full", step=step, generation=generation, cursor=Cursor(), loop=1, first_step=0, config="",
                  tree=msgspec.Raw(tree), reason="test")
    files = []
    for rank in range(2):
        data = numpy.full(ROWS, (step + rank) % 251, dtype=numpy.uint8)
        key, file = f"t@{rank}", part_name(rank, 2)
        piece = StoredSlice(file=file, key=key, offset=(rank, 0), shape=(1, ROWS), size=ROWS,
                      checksum=xxhash.xxh3_64(data.data).hexdigest())
        entry = TensorEntry(name="t", dtype="uint8", shape=(2, ROWS), pieces=(piece,))
        index = PartIndex(tensors=(entry,), about=about if rank == 0 else None)
        metadata = {INDEX_KEY: msgspec.json.encode(index).decode()}
        header = encode_header([StoredTensor(key, "uint8", (1, ROWS), ROWS)], metadata)
        store.write(f"{name}/{file}", [header, data.data])
        files.append(file)
    publisher.publish(PublishRequest(checkpoint=name, files=tuple(files), mark=""))
    print(step, flush=True)
"""


def kill_a_writer(folder: Path, *, generation: int, after: float) -> int:
    """The last step that was said to be published before the process was killed; 0 where none was."""
    command = [sys.executable, "-c", WRITER.replace("KEEP", str(KEEP)), str(folder), str(generation)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    first = process.stdout.readline()
    killing = threading.Timer(after, process.kill)
    killing.start()
    lines = [first, *process.stdout]
    killing.join()
    process.stdout.close()
    process.wait()
    return max(int(line) for line in lines if line.endswith("\n"))


def check(folder: Path, *, generation: int, said: int) -> None:
    store = LocalStore(folder)
    newest = published(store)[0]
    assert newest.generation == generation
    assert said <= newest.step <= said + 1  # it may have been killed before it could say so
    for listed in published(store):
        assert verify(store, load_manifest(store, listed.name)) == []
    assert len(published(store)) <= KEEP + 1 + KEEP * (generation > 1)
    assert len(unpublished(store)) <= 2  # one being written, one being removed
    StorePublisher(store, keep=KEEP).clean()
    assert unpublished(store) == []


@pytest.mark.parametrize("moment", range(4))
def test_killed_at_any_moment_the_last_published_one_is_whole(moment: int, tmp_path: Path) -> None:
    said = kill_a_writer(tmp_path, generation=1, after=random.Random(moment).uniform(0.0, 0.2))
    check(tmp_path, generation=1, said=said)


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_a_campaign_of_kills_in_one_folder(tmp_path: Path) -> None:
    """Each writer goes on in the folder that the killed ones left."""
    draw = random.Random(7)
    for generation in range(1, 81):
        said = kill_a_writer(tmp_path, generation=generation, after=draw.uniform(0.0, 0.15))
        check(tmp_path, generation=generation, said=said)

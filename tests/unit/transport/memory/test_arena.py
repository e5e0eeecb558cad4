"""Memory that one process writes and others read: only the right one, and only to be read."""

from __future__ import annotations

import ctypes
import fcntl
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from shoal.transport.memory.arena import RESERVED, Arena, Offer, PeerArena, word_at
from shoal.transport.memory.neighbours import partition

SIZE = 1 << 20


def test_what_is_written_is_seen_by_whoever_opened_it() -> None:
    own = Arena.create(SIZE)
    peer = PeerArena.open(own.offer)
    assert peer is not None
    own.memory[1000:1005] = b"hello"
    assert bytes(peer.memory[1000:1005]) == b"hello"
    word_at(own.address + 2000).value = 77
    assert word_at(peer.address + 2000).value == 77
    peer.close()
    own.close()
    own.close()


def test_a_peer_cannot_write() -> None:
    script = """
import ctypes, sys
from shoal.transport.memory.arena import Arena, PeerArena
own = Arena.create(4096)
peer = PeerArena.open(own.offer)
try:
    peer.memory[100:101] = b"x"
except TypeError:
    print("refused", flush=True)
ctypes.memset(peer.address + 100, 1, 1)  # past Python: the processor refuses
print("written", flush=True)
"""
    ended = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True)
    assert ended.stdout == "refused\n"
    assert ended.returncode == -11


def test_it_is_anonymous_and_cannot_shrink_under_its_readers() -> None:
    own = Arena.create(SIZE)
    assert str(Path(f"/proc/self/fd/{own.offer.descriptor}").readlink()).startswith("/memfd:shoal")
    with pytest.raises(PermissionError):
        os.ftruncate(own.offer.descriptor, 0)
    own.close()


@pytest.mark.timeout(30)
def test_what_is_no_anonymous_memory_is_not_even_opened(tmp_path: Path) -> None:
    """A pipe without a writer would block whoever opens it, and opening some devices sets them off."""
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    plain = tmp_path / "plain"
    plain.write_bytes(bytes(SIZE))
    for path, flags in ((pipe, os.O_RDWR), (link, os.O_RDWR), (Path("/dev/zero"), os.O_RDWR), (plain, os.O_RDONLY)):
        descriptor = os.open(path, flags)
        try:
            offer = Offer(process=os.getpid(), descriptor=descriptor, size=SIZE, nonce=bytes(32))
            assert PeerArena.open(offer) is None, path
        finally:
            os.close(descriptor)


@pytest.mark.timeout(30)
def test_a_pipe_of_another_process_that_nobody_writes_blocks_nobody(tmp_path: Path) -> None:
    """Its reading end alone: whoever opened it anew for reading would wait for a writer."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        offer = Offer(process=os.getpid(), descriptor=reading, size=SIZE, nonce=bytes(32))
        assert PeerArena.open(offer) is None
    finally:
        os.close(reading)


@pytest.mark.parametrize("seals", [0, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL])
def test_memory_that_could_still_change_its_size_is_not_mapped(seals: int) -> None:
    descriptor = os.memfd_create("shoal", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, SIZE)
        if seals:
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
        offer = Offer(process=os.getpid(), descriptor=descriptor, size=SIZE, nonce=bytes(32))
        assert PeerArena.open(offer) is None
    finally:
        os.close(descriptor)


def test_memory_of_large_pages_is_not_mapped() -> None:
    """Where none is left, reading it would end the process that reads."""
    large = 2 << 20
    try:
        descriptor = os.memfd_create("shoal", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING | os.MFD_HUGETLB)
    except OSError:
        return  # this kernel has none: nobody could offer it
    try:
        os.ftruncate(descriptor, large)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        assert PeerArena.open(Offer(process=os.getpid(), descriptor=descriptor, size=large, nonce=bytes(32))) is None
    finally:
        os.close(descriptor)


def test_a_wrong_nonce_size_process_or_descriptor_is_not_the_same_machine(tmp_path: Path) -> None:
    own = Arena.create(SIZE)
    with (tmp_path / "file").open("wb+") as other:
        other.truncate(SIZE)
        wrong: list[dict[str, object]] = [
            {"nonce": bytes(32)},
            {"size": SIZE - 4096},
            {"size": RESERVED - 1},
            {"size": 1 << 60},
            {"process": 2**22 + 1},
            {"process": -1},
            {"descriptor": other.fileno()},
            {"descriptor": 100_000},
        ]
        for changed in wrong:
            offer = msgspec.structs.replace(own.offer, **changed)
            assert PeerArena.open(offer) is None, changed
    own.withdraw()
    assert PeerArena.open(own.offer) is None
    own.close()


def test_a_process_of_another_pid_namespace_is_not_taken_for_one_of_ours() -> None:
    """There the same number is another process, or none: its arena cannot be opened."""
    own = Arena.create(4096)
    offer = own.offer
    script = f"""
from shoal.transport.memory.arena import Offer, PeerArena
offer = Offer(process={offer.process}, descriptor={offer.descriptor}, size={offer.size}, nonce={offer.nonce!r})
print(PeerArena.open(offer) is None)
"""
    inside = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", script]
    ended = subprocess.run(inside, check=True, capture_output=True, text=True)
    assert ended.stdout == "True\n"
    own.close()


def test_an_offer_is_small_and_typed() -> None:
    own = Arena.create(4096)
    data = msgspec.msgpack.encode(own.offer)
    assert msgspec.msgpack.decode(data, type=Offer) == own.offer
    assert len(data) < 200
    own.close()


def test_pages_take_memory_only_when_they_are_written() -> None:
    own = Arena.create(1 << 30)
    assert os.fstat(own.offer.descriptor).st_blocks * 512 < 1 << 20
    ctypes.memset(own.address + (1 << 29), 1, 4096)
    own.close()


def test_ranks_are_neighbours_when_all_of_them_see_each_other() -> None:
    assert partition([[0, 1, 2], [0, 1, 2], [0, 1, 2]]) == ((0, 1, 2),)
    assert partition([[0, 2], [1, 3], [0, 2], [1, 3]]) == ((0, 2), (1, 3))
    assert partition([[0, 1], [1], [2]]) == ((0,), (1,), (2,))  # seen, but not seeing
    assert partition([[0, 1], [0, 1, 2], [1, 2]]) == ((0, 1), (2,))

"""A folder as a store: what killed writers, full disks and a lost power supply leave of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.checkpoint.stores import opening as stores
from shoal.checkpoint.stores.local_store import LocalStore
from shoal.checkpoint.stores.remote_store import RemoteStore

WRITER = """
import sys
from pathlib import Path
from shoal.checkpoint.stores.local_store import LocalStore

def chunks():
    yield b"x" * 100_000
    print("written", flush=True)
    sys.stdin.read()  # until it is killed

LocalStore(Path(sys.argv[1])).write("step/part", chunks())
"""
LIMITED = """
import resource, signal, sys
from pathlib import Path
from shoal.checkpoint.stores.local_store import LocalStore

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))  # the kernel then writes a part, as on a full disk
try:
    LocalStore(Path(sys.argv[1])).write("step/part", [b"x" * 40_000, b"y" * 40_000])
except OSError as error:
    print(error.strerror)
"""


def test_of_a_writer_that_is_killed_nothing_is_seen_and_its_remains_go_with_the_folder(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.write("step/part", [b"old"])
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "written\n"
        writer.send_signal(signal.SIGKILL)
    assert len(list((tmp_path / "step").iterdir())) == 2, "the writer should have left something behind"
    assert store.names("step") == ["part"]
    assert bytes(store.read("step/part")) == b"old"
    store.remove("step")
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_takes_no_more_leaves_nothing_and_says_so(tmp_path: Path) -> None:
    result = subprocess.run([sys.executable, "-c", LIMITED, str(tmp_path)], capture_output=True, text=True, check=True)
    assert result.stdout == "File too large\n"
    assert list((tmp_path / "step").iterdir()) == []


def test_bytes_reach_the_disk_before_the_name_and_the_name_before_the_return(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def seen_fsync(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        done.append("flush a hidden file" if path.name.startswith(".") else f"flush {path.name}")
        fsync(descriptor)

    def seen_replace(self: Path, target: Path) -> Path:
        done.append(f"rename to {target.name}")
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", seen_fsync)
    monkeypatch.setattr(Path, "replace", seen_replace)
    (tmp_path / "top").mkdir()
    LocalStore(tmp_path / "top" / "new").write("step/part", [b"x"])
    last = ["flush a hidden file", "rename to part", "flush step"]
    assert done == ["flush top", "flush new", *last]
    done.clear()
    LocalStore(tmp_path / "top" / "new").write("step/part", [b"x"])
    assert done == last


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(OSError, match=str(tmp_path / "file")):
        LocalStore(tmp_path / "file").write("a", [b"x"])
    assert LocalStore(tmp_path / "file").names() == []


@pytest.mark.parametrize(
    ("to", "place"),
    [
        ("", "runs/job/checkpoints"),
        ("/big/disk", "/big/disk/job"),
        ("/big/disk/", "/big/disk/job"),
        ("file:///big/disk", "/big/disk/job"),
        ("relative", "relative/job"),
        ("memory://", "memory://job"),
        ("memory://there/", "memory://there/job"),
    ],
)
def test_every_run_has_a_place_of_its_own(to: str, place: str) -> None:
    store = stores.store_for(Path("runs/job"), to)
    assert store.place == place
    assert isinstance(store, RemoteStore if "://" in place else LocalStore)


def test_nothing_that_the_coordinator_needs_imports_torch_or_fsspec() -> None:
    modules = (
        "checkpoint.published.store_publisher",
        "checkpoint.published.catalogue",
        "checkpoint.stores.opening",
        "cli.records.checkpoints",
        "cli.records.run_store",
    )
    code = (
        f"import sys, {', '.join(f'shoal.{name}' for name in modules)}; print({{'torch', 'fsspec'}} & set(sys.modules))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "set()\n"

"""A job whose folder `disk` is a disk of its own, of 2 MB, in a mount namespace that ends with the job."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from support.launcher import PATIENCE, command_of

MOUNT = "mount -t tmpfs -o size=2m tmpfs disk"


class SmallDiskJob:
    """A running `shoal run` and its disk, seen from outside the namespace."""

    def __init__(self, folder: Path, process: subprocess.Popen[bytes]) -> None:
        self.folder = folder
        self.process = process
        self.disk = Path(f"/proc/{process.pid}/cwd/disk")

    def fill(self) -> None:
        """To the last byte. Files that are there already keep the blocks that they have."""
        with (self.disk / "filler").open("ab", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(bytes(1024)):
                pass

    def free(self) -> None:
        (self.disk / "filler").unlink()

    @property
    def screen(self) -> str:
        return (self.folder / "screen").read_text(encoding="utf-8")

    def wait_for(self, text: str) -> None:
        """Until the launcher has written it."""
        limit = time.monotonic() + PATIENCE
        while text not in self.screen:
            assert time.monotonic() < limit, f"{text!r} is not on the screen:\n{self.screen}"
            time.sleep(0.02)

    @property
    def launcher(self) -> psutil.Process:
        [found] = psutil.Process(self.process.pid).children()
        return found

    @property
    def coordinator(self) -> psutil.Process:
        [found] = [child for child in self.launcher.children() if "coordinator" in command_of(child)]
        return found

    def end(self) -> int:
        """Wait for the job to end by itself."""
        return self.process.wait(PATIENCE)


@contextlib.contextmanager
def on_small_disk(folder: Path, *arguments: str) -> Iterator[SmallDiskJob]:
    """`shoal run` with these arguments in `folder`; what it writes on the disk is in `kept` afterwards."""
    (folder / "disk").mkdir()
    (folder / "runtime").mkdir()
    as_root = [] if os.geteuid() == 0 else ["--map-root-user"]
    inside = f'{MOUNT} && "$@"; code=$?; cp -r disk kept; exit $code'
    job = [sys.executable, "-m", "shoal", "run", *arguments]
    with (folder / "screen").open("wb") as screen:
        process = subprocess.Popen(
            ["unshare", *as_root, "--mount", "sh", "-c", inside, "sh", *job],
            cwd=folder,
            env={**os.environ, "XDG_RUNTIME_DIR": str(folder / "runtime")},
            stdin=subprocess.DEVNULL,
            stdout=screen,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield SmallDiskJob(folder, process)
    finally:
        if process.poll() is None:
            for child in psutil.Process(process.pid).children():
                child.kill()
        process.wait(PATIENCE)

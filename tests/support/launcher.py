"""Running `shoal` as users do, in a process of its own, and scripts for it that need no torch."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import psutil

from shoal.events import AnyEvent, Record

SHOAL = (sys.executable, "-m", "shoal")
PATIENCE = 60.0  # seconds; generous, since the machine may be busy

# A worker that joins the job, without torch. `report` says that a step was applied.
JOINING = """
import os, signal, socket, subprocess, sys, time
from pathlib import Path
from shoal import events
from shoal.environment import worker_environment
from shoal.errors import ShoalError
from shoal.membership.client import CoordinatorClient
from shoal.values import Address, TimeShares
from shoal.wire.messages import PROTOCOL_VERSION, ExchangeBroken, Join, Ready

me = worker_environment()
client = CoordinatorClient.connect(
    me.coordinator,
    Path(me.token_file).read_text().strip(),
    Join(version=PROTOCOL_VERSION, worker=me.worker, host=socket.gethostname(), process=os.getpid(),
         address=Address("127.0.0.1", 9)),
    timeout=30.0,
)

def wait_for_generation(after):
    try:
        return client.wait_for_generation(after)
    except ShoalError as error:  # the job is over, and the launcher says why
        sys.exit(error.exit_code)

def enter(known):
    # The next generation that this worker is in, after `known`; it says that it is ready where it was left out.
    while True:
        if known is not None:
            client.tell(Ready(generation=known.number))
        known = wait_for_generation(0 if known is None else known.number)
        if known.rank_of(me.worker) is not None:
            return known

generation = enter(client.welcome.generation)

def regroup(step):
    # At a step's end: into the next generation, if that is wished for or there is one already.
    global generation
    wish = client.regroup_wish
    if wish is None and client.interruption(generation.number) is None:
        return
    number = generation.number
    client.tell(ExchangeBroken(generation=number, step=step, operation="the vote", peer=None, reason=wish or "news",
                               holds=number, is_planned=wish is not None))
    while True:
        generation = wait_for_generation(generation.number)
        if generation.rank_of(me.worker) is not None:
            return

shares, reports = TimeShares(), 0

def report(step, **values):
    global shares, reports
    shares = shares.plus(TimeShares(compute=0.6, communication=0.2, waiting=0.1, input=0.05, other=0.05))
    reports += 1
    client.set_position(step, "all-reduce of gradients")
    client.report(events.StepsApplied(worker=me.worker, generation=generation.number, step=step, epoch=0,
                                      samples=10 * reports, seconds=shares.total, shares=shares,
                                      bytes_sent=100 * reports, values=values))

def leave(step, reason="finished", is_handover=False):
    client.leave(step=step, reason=reason, is_handover=is_handover)
    client.close()
"""


# On top of that, a worker that takes steps until the file `done` is there, through whatever happens to the others.
# SIGTERM makes it hand over. Its number and process are in the file `started`, and those of its generations in
# `entered`.
STEPPING = """
with open("started", "a") as file:
    print(me.worker, os.getpid(), file=file)
told = []
signal.signal(signal.SIGTERM, lambda *_: told.append("got SIGTERM"))
entered = None
step = 0
while not os.path.exists("done") and client.stop_reason is None and not told:
    if generation is not entered:
        entered = generation
        with open("entered", "a") as file:
            print(me.worker, generation.number, *(member.worker for member in generation.members), file=file)
    step += 1
    report(step, loss=1.0)
    time.sleep(0.02)
    regroup(step)
if client.stop_reason is not None and generation.rank_of(me.worker) == 0:
    client.report(events.StopAgreed(step=step, reason=client.stop_reason))
leave(step, client.stop_reason or "finished", is_handover=bool(told) and client.stop_reason is None)
"""

# On top of JOINING, a worker that writes its part of checkpoints: `save(step)` says whether one was published. The file
# `wait` keeps it from writing.
SAVING = """
import msgspec
from shoal.checkpoint.published.manifest import About, INDEX_KEY, PartIndex, checkpoint_name, part_name
from shoal.checkpoint.parts.part_file import encode_header
from shoal.checkpoint.stores.opening import store_for
from shoal.job_config import from_toml
from shoal.values import Cursor
from shoal.wire.messages import PartFailed, PartWritten

config = from_toml(client.config, origin="test")
rank = generation.rank_of(me.worker)

def save(step, is_last=False):
    name, file = checkpoint_name(step, generation.number), part_name(rank, generation.size)
    about = About(kind="full", step=step, generation=generation, cursor=Cursor(), loop=1, first_step=0, config="",
                  tree=msgspec.Raw(b"{}"), reason="test")
    if rank == 0:
        client.report(events.CheckpointStarted(checkpoint=name, step=step, reason="test", is_last=is_last))
    while os.path.exists("wait"):
        time.sleep(0.02)
    index = msgspec.json.encode(PartIndex(tensors=(), about=about if rank == 0 else None)).decode()
    said = {"checkpoint": name, "generation": generation.number, "step": step}
    store = store_for(Path(config.run_dir), config.checkpoint_to)
    try:
        store.write(f"{name}/{file}", [encode_header([], {INDEX_KEY: index})])
    except OSError as error:
        client.part_failed(PartFailed(**said, reason=str(error)))
    else:
        client.part_written(PartWritten(**said, file=file, size=1, seconds=0.1, blocked=0.1, reason="test"))
    return client.wait_settled(name, 60.0)
"""


def write_script(folder: Path, text: str, *, joins: bool = False, saves: bool = False, name: str = "script.py") -> Path:
    """`saves` includes `joins`."""
    path = folder / name
    before = JOINING if joins or saves else "import os, signal, subprocess, sys, time\n"
    path.write_text(before + (SAVING if saves else "") + text, encoding="utf-8")
    return path


# The lines with which every job begins and ends.
FRAME = re.compile(
    r"shoal: (\d+ workers?\b.*; the record is in |training in 1 process|the workers are starting|"
    r"starting \d+ workers? of |no step and no output yet, |finished in |failed[,:])"
)


def without_frame(stderr: str) -> str:
    """Standard error without the lines that every job has."""
    return "".join(line for line in stderr.splitlines(keepends=True) if not FRAME.match(line))


@dataclass(frozen=True)
class Outcome:
    code: int
    stdout: str
    stderr: str  # without the first and the last line of a job
    frame: tuple[str, ...]  # those


def outcome_of(code: int, stdout: str, stderr: str) -> Outcome:
    frame = tuple(line for line in stderr.splitlines() if FRAME.match(line))
    return Outcome(code, stdout, without_frame(stderr), frame)


def shoal(
    folder: Path, *arguments: str, variables: dict[str, str] | None = None, patience: float = PATIENCE
) -> Outcome:
    """Run a command to its end in `folder`, within `patience` seconds; nothing of it may be left over."""
    with started(folder, *arguments, variables=variables) as process:
        stdout, stderr = process.communicate(timeout=patience)
    assert leftovers(folder) == []
    return outcome_of(process.returncode, stdout, stderr)


@contextlib.contextmanager
def started(
    folder: Path, *arguments: str, variables: dict[str, str] | None = None, descriptors: int = 0
) -> Iterator[subprocess.Popen[str]]:
    """A running `shoal`, with so many descriptors per process if that is given.

    Its files for tokens go to `folder`/runtime.
    """
    runtime = folder / "runtime"
    runtime.mkdir(exist_ok=True)
    limited = ["sh", "-c", f'ulimit -n {descriptors}; exec "$@"', "sh"] if descriptors else []
    process = subprocess.Popen(
        [*limited, *SHOAL, *arguments],
        cwd=folder,
        env={**os.environ, "XDG_RUNTIME_DIR": str(runtime), **(variables or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        for stream in (process.stdout, process.stderr):
            assert stream is not None
            stream.close()


def processes_in(folder: Path) -> list[psutil.Process]:
    """Every process that works in `folder`: launchers, coordinators, workers and what they started."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.cwd() == str(folder) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def command_of(process: psutil.Process) -> list[str]:
    """Its command line; empty when it has ended meanwhile."""
    with contextlib.suppress(psutil.Error):
        return process.cmdline()
    return []


def leftovers(folder: Path) -> list[str]:
    """What a job that is over has not taken with it, once it had a moment to do so."""
    limit = time.monotonic() + PATIENCE / 2
    while True:
        commands = [command_of(process) for process in processes_in(folder)]
        found = [" ".join(command) for command in commands if command]
        found += [str(path) for path in (folder / "runtime").iterdir()]
        if not found or time.monotonic() > limit:
            return found
        time.sleep(0.05)


def wait_for_file(path: Path, *, count: int = 1) -> list[str]:
    """The lines of a file that others append to, once there are `count`."""
    limit = time.monotonic() + PATIENCE
    while time.monotonic() < limit:
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        if len(lines) >= count:
            return lines
        time.sleep(0.02)
    raise AssertionError(f"{path} did not get {count} lines")


def wait_for_line(process: subprocess.Popen[str], words: str) -> None:
    """Read what `shoal` prints up to a line with these words."""
    assert process.stdout is not None
    while words not in (line := process.stdout.readline()):
        assert line, f"it ended without a line with {words!r}"


def events_in(run_dir: Path) -> list[AnyEvent]:
    """Those of the record so far. Of a job that runs the last line may be on its way, and there may be none yet."""
    path = run_dir / "events.jsonl"
    whole = path.read_bytes().rpartition(b"\n")[0] if path.exists() else b""
    return [msgspec.json.decode(line, type=Record).event for line in whole.splitlines()]


def write_token(path: Path, token: str) -> Path:
    """A file that holds a token, which nobody else may read."""
    path.touch(mode=0o600)
    path.write_text(token, encoding="ascii")
    return path

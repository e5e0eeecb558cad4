"""Five walks through the system, from traced jobs: a start, a gradient, a death, a checkpoint and a push.

    python -m tests.support.walk                         prints them
    python -m tests.support.walk --write docs/design.md  writes them between the marks in that file

A walk is a list of stops. Each stop names a function and the process that it is called in; the path to it is the stack
of the package's functions at that time, of which one per file is shown: the last before the next file. Where a function
is reached on several paths, the one that the document has is shown if it is among them, else the most frequent: which
is most frequent depends on how busy the machine is. Files follow from the trace, so moving a module needs no
change here; whoever renames the function of a stop renames it here too. Not here: the recording (`tracing`).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

BEGIN, END = "<!-- walks: begin -->", "<!-- walks: end -->"
PATIENCE = 300.0  # seconds for a job; generous, since the machine may be busy
SCRIPT = """
import torch
import shoal

def train(run):
    model = run.model(torch.nn.Linear(4, 2))
    optimizer = run.optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    data = torch.utils.data.TensorDataset(torch.ones(160, 4))
    for (x,) in run.batches(data, batch_size=4, epochs=1):
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

if __name__ == "__main__":
    shoal.main(train)
"""


@dataclass(frozen=True)
class Stop:
    process: str  # as `tracing` calls it
    function: str  # qualified name
    what: str  # happens here
    under: str = ""  # only calls below this function count
    start: str = ""  # the path is shown from this function on


@dataclass(frozen=True)
class Walk:
    title: str
    options: tuple[str, ...]  # of `shoal run`
    stops: tuple[Stop, ...]


TRIES = 4  # a worker that is killed between two reductions breaks none, and nobody has a void step then
DYING = ("-n", "2", "--schedule", "ring", "--checkpoint-every", "4", "--chaos", "kill worker 1 at step 9")
SERVED = ("-n", "2", "--strategy", "parameter-server", "--servers", "2", "--replicas", "2")

WALKS = (
    Walk(
        "From `shoal run` to the first step",
        DYING,
        (
            Stop("launcher", "LocalEngine.start", "start the coordinator and the workers"),
            Stop("coordinator", "MembershipCore.__init__", "begin to decide who is in the job"),
            Stop("worker", "CoordinatorClient.connect", "connect to the coordinator and prove the token"),
            Stop("coordinator", "MembershipCore._join", "take the worker in", start="serve"),
            Stop("coordinator", "Generations._enter", "form a generation", start="MembershipCore.handle"),
            Stop("worker", "Heard._formed", "hear of the generation", start="CoordinatorClient.take_in"),
            Stop("worker", "ClusterPeers.connect", "connect to the other members", under="join_first"),
            Stop("worker", "align", "compare where everybody is", under="join_first"),
            Stop("worker", "Session.begin", "the script's loop asks for a batch: begin a step"),
        ),
    ),
    Walk(
        "One gradient",
        DYING,
        (
            Stop("worker", "GradientGroups.arrive", "a parameter has its gradient: backward calls a hook"),
            Stop("worker", "Operations.all_reduce", "a group is complete: reduce it", under="GradientGroups._launch"),
            Stop("worker", "SendQueue.push", "send what the schedule says", under="GradientGroups._launch"),
            Stop("worker", "Executor._receive_blocks", "receive, and add to it", under="GradientGroups._launch"),
            Stop("worker", "GradientGroups.publish", "the sum is whole: backward ends with the mean"),
            Stop("worker", "OptimizerSteps.step", "the optimizer's step counts, or is void"),
        ),
    ),
    Walk(
        "One death",
        DYING,
        (
            Stop("launcher", "LocalEngine._reap", "notice that a process has ended"),
            Stop("coordinator", "Verdicts.exited", "hear how it ended", start="_Coordinator._feed"),
            Stop("worker", "undo_void", "the reduction broke: undo the void step"),
            Stop("worker", "CoordinatorClient.tell", "tell what broke", under="recover"),
            Stop("coordinator", "Generations.broken", "hear what broke", start="MembershipCore.handle"),
            Stop(
                "coordinator", "decide", "decide who goes on", under="Generations._form", start="MembershipCore.handle"
            ),
            Stop(
                "coordinator", "DecisionFile.add", "write the decision down, then tell it", start="_Coordinator._feed"
            ),
            Stop("worker", "ClusterPeers.connect", "connect to those that are left", under="recover"),
            Stop("worker", "take", "go on from the state of whoever is furthest", under="recover"),
        ),
    ),
    Walk(
        "One checkpoint",
        DYING,
        (
            Stop("worker", "Saver.vote", "wish for a checkpoint, with the step's votes"),
            Stop("worker", "Capture.__init__", "capture the state after the step"),
            Stop("worker", "LocalStore.write", "write this worker's part"),
            Stop("worker", "CoordinatorClient.part_written", "report the part"),
            Stop("coordinator", "Publishing.part", "collect the parts", start="MembershipCore.handle"),
            Stop("coordinator", "LocalStore.write", "write the manifest: the checkpoint is published"),
            Stop("coordinator", "Publishing.published", "tell everybody", start="MembershipCore.handle"),
        ),
    ),
    Walk(
        "One push",
        SERVED,
        (
            Stop("worker", "OutgoingPush.put", "a parameter has its gradient: backward calls a hook"),
            Stop(
                "worker",
                "PushStaging._send",
                "stage it on every server that holds a part of it",
                start="PushStaging.pump",
            ),
            Stop("home server", "StageDesk.staged", "take in what is staged", start="WorkerDesk.heard"),
            Stop("worker", "ParameterClient._propose", "propose the push", under="ParameterServer._commit"),
            Stop("home server", "Sequencer.proposed", "give the push its number", start="WorkerDesk.heard"),
            Stop("home server", "Ledger._push_together", "wait for the others of its step", start="Sequencer.proposed"),
            Stop("other server", "Sequencer._hear_record", "record the entry", start="Space.recorded"),
            Stop("home server", "Sequencer._settle", "enough servers have it: answer", start="Space.recorded"),
            Stop("home server", "UnitRule.step", "apply the update to the parameters", start="Space.work"),
            Stop("home server", "PullDesk._answer", "answer a pull that waits for the update", start="PullDesk._try"),
            Stop("worker", "IncomingPull.wait", "take the new values"),
        ),
    ),
)
FUNCTIONS = sorted({stop.function for walk in WALKS for stop in walk.stops})


@dataclass(frozen=True)
class Call:
    process: str
    thread: str
    path: tuple[tuple[str, str], ...]  # files and functions, outermost first


def trace(options: Sequence[str]) -> list[Call]:
    """Run one job, and see how it reaches the functions of all stops."""
    with tempfile.TemporaryDirectory(prefix="shoal-walk-") as folder:
        script, calls = Path(folder, "train.py"), Path(folder, "calls")
        script.write_text(SCRIPT)
        calls.mkdir()
        tracing = str(Path(__file__).parent / "tracing")
        variables = {"WALK_FOLDER": str(calls), "WALK_SCRIPT": str(script), "WALK_FUNCTIONS": ",".join(FUNCTIONS)}
        command = [sys.executable, "-m", "shoal", "run", *options, "--run-dir", f"{folder}/run", str(script)]
        environment = {**os.environ, **variables, "PYTHONPATH": tracing}
        job = subprocess.run(
            command, env=environment, cwd=folder, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        if job.returncode:
            raise RuntimeError(f"`{' '.join(command)}` ended with {job.returncode}:\n{job.stdout}{job.stderr}")
        lines = [line for file in sorted(calls.iterdir()) for line in file.read_text().splitlines()]
    return [_call(json.loads(line)) for line in lines]


def _call(said: dict[str, object]) -> Call:
    thread = re.sub(r"(-[gr]?\d+)+$", "", str(said["thread"])).removeprefix("shoal-")
    path = tuple((str(file), str(function)) for file, function in said["path"])  # type: ignore[attr-defined]
    return Call(str(said["process"]), "" if thread == "MainThread" else thread, path)


def text_of(walk: Walk, calls: Sequence[Call], known: str) -> str:
    """`known`: the walks that the document has."""
    lines = [f"**{walk.title}** (`shoal run {' '.join(_quoted(walk.options))} train.py`)", "", "```"]
    before: Call | None = None
    for stop in walk.stops:
        found = _by_frequency(stop, calls)
        call = next((one for one in found if _lines(stop, one, before) + "\n" in known), found[0])
        lines.append(_lines(stop, call, before))
        before = call
    return "\n".join([*lines, "```", ""])


def _lines(stop: Stop, call: Call, before: Call | None) -> str:
    where = f"{call.process}, thread {call.thread}" if call.thread else call.process
    path = [f"    {file:<38} {function}" for file, function in _news(call, before)]
    return "\n".join([f"{where}: {stop.what}", *path])


def _quoted(options: Sequence[str]) -> list[str]:
    return [f'"{option}"' if " " in option else option for option in options]


def _by_frequency(stop: Stop, calls: Sequence[Call]) -> list[Call]:
    """How the stop is reached, the most frequent path first."""
    found = Counter(call for call in (_shown(stop, each) for each in calls) if call is not None)
    if not found:
        below = f" below {stop.under}" if stop.under else ""
        raise LookupError(
            f"no {stop.process} calls {stop.function}{below}: name the function that has taken its place, in {__file__}"
        )
    return [call for call, _ in found.most_common()]


def _shown(stop: Stop, call: Call) -> Call | None:
    """The call's path as far as it is shown; None: it is not the stop's."""
    names = [function for _, function in call.path]
    if call.process != stop.process or names[-1] != stop.function or (stop.under and stop.under not in names):
        return None
    if stop.start and stop.start not in names:
        return None
    path = call.path[names.index(stop.start) :] if stop.start else call.path
    last = [step for step, after in zip(path, [*path[1:], None], strict=True) if after is None or after[0] != step[0]]
    return Call(call.process, call.thread, tuple(last))


def _news(call: Call, before: Call | None) -> Iterator[tuple[str, str]]:
    """The path without what it shares with the one before it in the same thread."""
    shared = 0
    if before is not None and (before.process, before.thread) == (call.process, call.thread):
        while shared < min(len(call.path) - 1, len(before.path)) and call.path[shared] == before.path[shared]:
            shared += 1
    return iter(call.path[shared:])


def walks(known: str = "") -> str:
    """All walks, as they are in `docs/design.md`, which has `known` today."""
    jobs = sorted({walk.options for walk in WALKS})
    for _ in range(TRIES - 1):
        with contextlib.suppress(LookupError):
            return _traced(jobs, known)
    return _traced(jobs, known)


def _traced(jobs: Sequence[tuple[str, ...]], known: str) -> str:
    with ThreadPoolExecutor(len(jobs)) as pool:
        calls = dict(zip(jobs, pool.map(trace, jobs), strict=True))
    return "\n".join(text_of(walk, calls[walk.options], known) for walk in WALKS)


def written(document: str) -> str:
    """The walks that a document has between its marks."""
    return document.split(BEGIN, 1)[1].split(END, 1)[0].strip() + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.support.walk", description="Print the walks, or write them.")
    parser.add_argument("--write", type=Path, metavar="FILE", help="replace the walks between the marks in this file")
    options = parser.parse_args()
    found = walks(written(options.write.read_text(encoding="utf-8")) if options.write is not None else "")
    if options.write is None:
        print(found)  # noqa: T201  what the command is for
        return
    document = options.write.read_text(encoding="utf-8")
    head, rest = document.split(BEGIN, 1)
    options.write.write_text(f"{head}{BEGIN}\n\n{found}\n{END}{rest.split(END, 1)[1]}", encoding="utf-8")


if __name__ == "__main__":
    main()

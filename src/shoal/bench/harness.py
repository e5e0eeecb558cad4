"""The harness of every benchmark: processes that answer over pipes, variants that take turns, medians.

Both sides are here: a benchmark's command starts a `Crew` and gives orders, the processes of the crew iterate over
`OrderLine` and answer. Orders and answers are JSON, one a line. Imports no torch.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from shoal.bench import texts
from shoal.errors import ScriptFailed, UsageError

T = TypeVar("T")
QUOTED = 1000  # characters of a failed process's output that the error repeats


def in_turns(
    variants: Mapping[str, Callable[[], T]],
    turns: int,
    *,
    uncounted: int = 0,
    told: Callable[[int], None] = lambda _turn: None,
) -> dict[str, list[T]]:
    """Results by variant, one per turn. Every turn begins with another variant, so that the order favours none.

    The first `uncounted` turns warm up and come on top of `turns`. `told` hears of every finished turn, from 0.
    """
    names = list(variants)
    found: dict[str, list[T]] = {name: [] for name in names}
    for turn in range(uncounted + turns):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            result = variants[name]()
            if turn >= uncounted:
                found[name].append(result)
        told(turn)
    return found


def medians(seconds: Mapping[str, Sequence[float]]) -> dict[str, float]:
    return {name: statistics.median(values) for name, values in seconds.items()}


class CrewMember:
    """A process of a crew. It reads orders from its standard input and answers on its standard output."""

    def __init__(self, name: str, popen: subprocess.Popen[str]) -> None:
        self._name = name
        self._popen = popen

    def order(self, order: object) -> None:
        assert self._popen.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the process is gone; `answer` reports that
            self._popen.stdin.write(json.dumps(order) + "\n")
            self._popen.stdin.flush()

    def answer(self) -> Any:
        assert self._popen.stdout is not None
        if line := self._popen.stdout.readline():
            return json.loads(line)
        raise ScriptFailed(
            f"{self._name} of the benchmark ended with exit code {self._popen.wait()} before it answered"
        )

    def finish(self, patience: float) -> None:
        """Tell the process that no more orders come, and wait until it has ended well."""
        assert self._popen.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._popen.stdin.close()
        if code := self._popen.wait(patience):
            raise ScriptFailed(f"{self._name} of the benchmark ended with exit code {code}")

    def end(self, grace: float) -> None:
        """End the process now: with SIGTERM and SIGKILL `grace` seconds later, or with SIGKILL where that is 0."""
        if grace:
            self._popen.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._popen.wait(grace)
        self._popen.kill()
        self._popen.wait()
        for stream in (self._popen.stdin, self._popen.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()


class Crew:
    """Processes of one benchmark, ended with the block. An error in the block quotes what they wrote last."""

    def __init__(self, *, grace: float = 0.0) -> None:
        """`grace`: seconds that processes get to end by themselves."""
        self._grace = grace
        self._processes: list[CrewMember] = []
        self._complaints = tempfile.TemporaryFile("w+")  # noqa: SIM115  closed with the block

    def start(
        self,
        name: str,
        *arguments: str,
        prefix: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        keep: Sequence[int] = (),
    ) -> CrewMember:
        """Run Python with these arguments, in this environment or else the present one.

        `prefix` comes before the command; `keep` are descriptors that the process inherits.
        """
        popen = subprocess.Popen(
            [*prefix, sys.executable, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
            text=True,
            env=env,
            pass_fds=keep,
        )
        self._processes.append(CrewMember(name, popen))
        return self._processes[-1]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with self._complaints:
            for process in reversed(self._processes):
                process.end(self._grace)
            if isinstance(error, ScriptFailed):
                self._complaints.seek(0)
                raise ScriptFailed(f"{error}: {self._complaints.read().strip()[-QUOTED:]}") from None


class OrderLine:
    """The crew member's side: its orders. What libraries print goes to standard error, away from the answers."""

    def __init__(self) -> None:
        self._answers = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)

    def __iter__(self) -> Iterator[Any]:
        for line in sys.stdin:
            yield json.loads(line)

    def next(self) -> Any:
        return json.loads(sys.stdin.readline())

    def answer(self, answer: object) -> None:
        self._answers.write(json.dumps(answer) + "\n")


def machine() -> str:
    """Cores and versions, in words."""
    torch = importlib.metadata.version("torch")
    return f"{os.cpu_count()} cores, Python {platform.python_version()}, torch {torch}"


def worker_of(command: str) -> Path:
    """The script that a benchmark's processes run: it lies beside the benchmark's command."""
    return Path(command).with_name("worker.py")


def check_above_zero(options: Any, *names: str) -> None:
    for name in names:
        if not getattr(options, name) > 0:
            raise UsageError(texts.not_above_zero(name.replace("_", "-"), getattr(options, name)))

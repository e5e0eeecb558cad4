"""Providers that start a program for each node, ssh or srun: it starts the agent there and stays with it.

The program's standard input brings the agent its errand, and its end ends the agent. What it prints, and its exit code,
say why there is no agent. A node that was lost is tried again, since it may come back. Few programs connect at the same
time: a host that many go through takes no more. Not here: which programs these are, and what their words mean.
"""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import subprocess
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from shoal.engines import texts
from shoal.engines.nodes.provider import NodeGone, Provider, WayIn
from shoal.engines.retries import Retries
from shoal.engines.waiting import wait_for
from shoal.errors import printable

FIRST_PAUSE, LONGEST_PAUSE = 5.0, 60.0  # seconds before a node that was lost is tried again
MOST_LINES, MOST_SAID = 20, 64 * 1024  # of what a program and its agent print: the last lines, of the last bytes
MOST_AT_ONCE = 32  # programs whose agents have not connected yet
STARTING_SECONDS = 10.0  # after which a program no longer counts as one of them
END_SECONDS = 5.0  # that a program may take to end
NO_SHOAL = re.compile(r"no module named '?shoal", re.IGNORECASE)  # what Python prints where Shoal is not installed


@dataclass(frozen=True)
class AgentProgram:
    """How an agent is started on a node."""

    node: str
    command: tuple[str, ...]
    variables: Mapping[str, str]  # the whole environment of the program
    slots: int = 0  # 0: the node says it
    is_warned: bool = False  # SIGTERM on this node announces the end of all nodes


@dataclass
class _Session:
    """One program that runs."""

    program: AgentProgram
    process: subprocess.Popen[bytes]
    pidfd: int
    began: float  # by time.monotonic
    said: bytearray = field(default_factory=bytearray)  # the last bytes of its output
    is_open: bool = True  # its output has not ended

    @property
    def lines(self) -> tuple[str, ...]:
        return tuple(self.said.decode("utf-8", "replace").splitlines()[-MOST_LINES:])


class AgentPrograms(Provider):
    def __init__(
        self, programs: Sequence[AgentProgram], explain: Callable[[str, int, Sequence[str]], NodeGone | None]
    ) -> None:
        """`explain` gets a node, the exit code of its program and the last lines that were printed.

        None: nothing is wrong yet, the program is started again after its pause.
        """
        self._programs = {program.node: program for program in programs}
        self._explain = explain
        self._way_in: WayIn | None = None
        self._selector = selectors.EpollSelector()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)  # rung if `poll` has something to return
        self._selector.register(self._bell, selectors.EVENT_READ, None)
        self._sessions: dict[str, _Session] = {}  # by node
        self._waiting: deque[str] = deque()  # nodes whose program is still to be started
        self._starting: dict[str, float] = {}  # by node whose agent has not connected: since when, oldest first
        self._retries = Retries(FIRST_PAUSE, LONGEST_PAUSE)
        self._not_started: list[NodeGone] = []
        self._is_closed = False

    @property
    def running(self) -> list[str]:
        """Nodes whose programs run."""
        return list(self._sessions)

    def open(self, way_in: WayIn) -> tuple[str, ...]:
        self._way_in = way_in
        self._waiting.extend(self._programs)
        self._start_some()
        return tuple(self._programs)

    def fileno(self) -> int:
        return self._selector.fileno()

    def poll(self) -> tuple[NodeGone, ...]:
        gone = []
        for key, _ in self._selector.select(0):
            session: _Session | None = key.data
            if session is None:
                os.eventfd_read(self._bell)
            elif key.fd == session.pidfd:
                gone += [one for one in [self._ended(session)] if one is not None]
            elif session.is_open:
                self._read(session)
        self._waiting.extend(self._retries.take_due(time.monotonic()))
        self._start_some()
        gone += self._not_started
        self._not_started = []
        return tuple(gone)

    def came(self, node: str) -> None:
        if self._starting.pop(node, None) is not None and self._waiting:
            os.eventfd_write(self._bell, 1)

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        for session in self._sessions.values():
            _close_input(session.process)
        limit = time.monotonic() + END_SECONDS
        for session in tuple(self._sessions.values()):
            try:
                session.process.wait(max(0.0, limit - time.monotonic()))
            except subprocess.TimeoutExpired:
                session.process.kill()
                session.process.wait()
            self._forget(session)
        self._selector.close()
        os.close(self._bell)

    def _start_some(self) -> None:
        now = time.monotonic()
        while self._starting and now - next(iter(self._starting.values())) > STARTING_SECONDS:
            del self._starting[next(iter(self._starting))]
        while self._waiting and len(self._starting) < MOST_AT_ONCE:
            program = self._programs[self._waiting.popleft()]
            try:
                self._start(program)
            except OSError as error:
                why = texts.program_not_started(program.node, program.command[0], error.strerror or error)
                self._not_started.append(NodeGone(program.node, why))
                self._retries.failed(program.node, now)
                os.eventfd_write(self._bell, 1)
            else:
                self._starting[program.node] = now

    def _start(self, program: AgentProgram) -> None:
        """Start it in a session of its own: a Ctrl-C in the terminal is for the launcher alone."""
        assert self._way_in is not None
        process = subprocess.Popen(
            program.command,
            env=dict(program.variables),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            bufsize=0,
            start_new_session=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        try:
            pidfd = os.pidfd_open(process.pid)
        except OSError:
            process.kill()
            process.communicate()
            raise
        session = _Session(program, process, pidfd, time.monotonic())
        self._sessions[program.node] = session
        self._selector.register(session.pidfd, selectors.EVENT_READ, session)
        self._selector.register(process.stdout, selectors.EVENT_READ, session)
        line = self._way_in.errand_line(program.node, program.slots, is_warned=program.is_warned)
        with contextlib.suppress(BrokenPipeError):  # it has ended already; its exit code says why
            process.stdin.write(line)

    def _read(self, session: _Session) -> None:
        assert session.process.stdout is not None
        try:
            data = os.read(session.process.stdout.fileno(), 65536)
        except BlockingIOError:
            return
        if not data:
            session.is_open = False
            self._selector.unregister(session.process.stdout)
        session.said += data
        del session.said[:-MOST_SAID]

    def _ended(self, session: _Session) -> NodeGone | None:
        assert session.process.stdout is not None
        while session.is_open and wait_for([session.process.stdout], 0.0):
            self._read(session)
        code = session.process.wait()
        self._forget(session)
        node = session.program.node
        self._starting.pop(node, None)
        now = time.monotonic()
        self._retries.failed(node, now, lasted=now - session.began)
        return self._explain(node, code, session.lines)

    def _forget(self, session: _Session) -> None:
        del self._sessions[session.program.node]
        self._selector.unregister(session.pidfd)
        os.close(session.pidfd)
        assert session.process.stdout is not None
        if session.is_open:
            self._selector.unregister(session.process.stdout)
        session.process.stdout.close()
        _close_input(session.process)


def _close_input(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()


def seconds_to_start(nodes: int) -> float:
    """The longest time until the last of so many programs is started."""
    return (nodes - 1) // MOST_AT_ONCE * STARTING_SECONDS


def last_line(lines: Sequence[str]) -> str:
    """The last line that says something, for people."""
    return next((printable(line.strip()) for line in reversed(lines) if line.strip()), "nothing")

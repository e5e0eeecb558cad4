"""The process on a node that starts a launcher's processes there: `python -P -m shoal.engines.nodes.agent`.

A thin loop around `LocalEngine`. One line on its standard input says where the launcher is and brings the token
(`provider.Errand`); then the agent connects to the launcher and does what it is told. When that connection or its
standard input ends, it ends all its processes, each after its `outlives_launcher` seconds, and itself. If it is killed,
its guardian does that. It imports no torch.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import time
from pathlib import Path

import msgspec

from shoal.engines import equipment, texts
from shoal.engines.engine import Exited, Happening, Printed, ProcessSpec, Working
from shoal.engines.local import LocalEngine
from shoal.engines.nodes import agent_messages as messages
from shoal.engines.nodes.agent_files import AgentFiles, CopyFailed
from shoal.engines.nodes.agent_line import PURPOSE, AgentLine
from shoal.engines.nodes.agent_messages import LauncherMessage, decode_launchers
from shoal.engines.nodes.provider import AGENT_HAS_NO_WAY, Errand
from shoal.engines.nodes.script_files import TooLarge, seen_in
from shoal.engines.waiting import wait_for
from shoal.environment import node_variables, thread_default
from shoal.errors import ShoalError, UsageError, WireError
from shoal.transport.connection.handshake import Key, Untrusted
from shoal.transport.connection.introduction import connect

LONGEST_ERRAND = 16 * 1024  # bytes of the line on standard input
CONNECT_SECONDS = 20.0
MOST_UNSENT = 4 * 1024 * 1024  # bytes of output that wait for the launcher; beyond, printing processes wait
LOOK_SECONDS = 1.0  # the longest wait: a process that works is reported about once a second


class Agent:
    def __init__(self, errand: Errand, line: AgentLine[LauncherMessage]) -> None:
        self._errand = errand
        self._line = line
        self._slots = errand.slots or equipment.usual_slots()
        self._files = AgentFiles()
        self._local = LocalEngine((self._files.folder,))
        self._outlives: dict[str, float] = {}  # by running process: seconds that it may outlive the launcher
        self._script = ""  # its path on this node; empty: there is none
        self._is_told_to_leave = False
        self._is_warned = False  # and the launcher has not been told yet

    def warn(self) -> None:
        """From a signal handler: the launcher is told soon."""
        self._is_warned = True

    def run(self) -> None:
        """Returns when the launcher is gone, or has said that it needs this node no more."""
        with contextlib.suppress(OSError, WireError):
            self._say(self._hello())
            while not self._is_told_to_leave and self._look():
                pass
        if not self._is_told_to_leave:
            self._outlive()

    def close(self) -> None:
        self._local.close()
        self._files.remove()
        self._line.close()

    def _hello(self) -> messages.Hello:
        return messages.Hello(
            node=self._errand.node,
            host=socket.gethostname(),
            versions=equipment.own_versions(),
            slots=self._slots,
        )

    def _look(self) -> bool:
        """Wait, and do what is to be done. False: standard input has ended."""
        if self._is_warned:
            self._is_warned = False
            self._say(messages.Warned())
        poll = select.poll()
        poll.register(0, select.POLLIN)
        poll.register(self._line, select.POLLIN | (select.POLLOUT if self._line.unsent else 0))
        if is_read := self._line.unsent < MOST_UNSENT:
            poll.register(self._local, select.POLLIN)
        ready = dict(poll.poll(LOOK_SECONDS * 1000))
        self._line.look_alive()
        if ready.get(self._line.fileno(), 0) & select.POLLOUT:
            self._line.push()
        if ready.get(self._line.fileno(), 0) & ~select.POLLOUT:
            for message in self._line.receive():
                self._obey(message)
        if is_read:
            for happened in self._local.poll():
                self._tell(happened)
        return 0 not in ready or bool(os.read(0, 4096))

    def _say(self, message: messages.NodeMessage) -> None:
        self._line.send(message)

    def _tell(self, happened: Happening) -> None:
        match happened:
            case Printed(name=name, data=data):
                for start in range(0, len(data), messages.PRINTED_BYTES):
                    piece = data[start : start + messages.PRINTED_BYTES]
                    self._say(messages.PrintedThere(name=name, data=piece))
            case Exited(name=name, code=code):
                self._files.forget(name)
                self._outlives.pop(name, None)
                self._say(messages.ExitedThere(name=name, code=code))
            case Working(name=name):
                self._say(messages.WorkingThere(name=name))
            case _:
                pass

    # What the launcher says

    def _obey(self, message: LauncherMessage) -> None:
        match message:
            case messages.LookAt():
                self._look_at(message)
            case messages.Settle():
                self._settle(Path(message.folder), message.script, Path(message.work_in))
            case messages.CopyFolder() | messages.FilePiece():
                self._copy(message)
            case messages.Start():
                self._start(message)
            case messages.Input(name=name, data=data):
                self._local.send(name, data)
            case messages.SendSignal(names=names, number=number):
                self._local.send_signal(names, signal.Signals(number))
            case messages.Depart():
                self._is_told_to_leave = True

    def _look_at(self, asked: messages.LookAt) -> None:
        """A folder that is too large, or cannot be read, is none that could be used."""
        try:
            is_there = asked.folder and Path(asked.folder).is_dir()
            seen = seen_in(Path(asked.folder), asked.script) if is_there else None
        except (OSError, TooLarge):
            seen = ()
        sees = bool(asked.probe) and os.path.exists(asked.probe)  # noqa: PTH110  where it may not look, it is not there
        self._say(messages.FolderSeen(is_there=seen is not None, files=seen or (), sees_probe=sees))

    def _settle(self, folder: Path, script: str, work_in: Path) -> None:
        self._script = str(folder / script) if script else ""
        try:
            os.chdir(work_in if work_in.is_dir() else folder)
        except OSError as error:
            self._say(messages.FolderFailed(reason=f"{folder}: {error.strerror}"))
        else:
            self._say(messages.FolderReady())

    def _copy(self, message: messages.CopyFolder | messages.FilePiece) -> None:
        try:
            if isinstance(message, messages.CopyFolder):
                self._files.begin_copy(message)
                self._script = str(self._files.copy_folder / message.script)
            else:
                self._files.add(message)
            done = self._files.finished_copy()
        except (CopyFailed, OSError) as error:
            self._say(messages.FolderFailed(reason=str(error)))
            return
        if done is not None:
            os.chdir(done)
            self._say(messages.FolderReady())

    def _start(self, order: messages.Start) -> None:
        command = list(order.command)
        if order.is_python:
            command[0] = sys.executable
        if order.script_at >= 0 and self._script:
            command[order.script_at] = self._script
        try:
            paths = self._files.bring(order.name, order.files)
            given = {**order.variables, **paths, **node_variables(self._errand.node, self._script)}
            spec = ProcessSpec(
                name=order.name,
                command=tuple(command),
                variables=thread_default(given, max(1, equipment.cores() // max(1, self._slots))),
                takes_input=order.takes_input,
                outlives_launcher=order.outlives_launcher,
            )
            self._local.start(spec)
        except (OSError, UsageError) as error:
            self._files.forget(order.name)
            self._say(messages.NotStarted(name=order.name, reason=str(error)))
        else:
            self._outlives[order.name] = order.outlives_launcher

    # The end

    def _outlive(self) -> None:
        """The launcher is gone: kill each process when its time is up."""
        start = time.monotonic()
        while self._outlives:
            age = time.monotonic() - start
            self._local.send_signal([name for name, its in self._outlives.items() if its <= age], signal.SIGKILL)
            wait_for([self._local], 0.05)
            for happened in self._local.poll():
                if isinstance(happened, Exited):
                    self._outlives.pop(happened.name, None)


def read_errand() -> Errand | None:
    """None: standard input has ended without one."""
    line = b""
    while not line.endswith(b"\n"):
        data = os.read(0, LONGEST_ERRAND)
        if not data or len(line) > LONGEST_ERRAND:
            return None
        line += data
    try:
        return msgspec.json.decode(line, type=Errand)
    except msgspec.MsgspecError:
        return None


def main() -> int:
    if (errand := read_errand()) is None:
        sys.stderr.write(f"{texts.NO_ERRAND}\n")
        return 2
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # Ray blocks SIGINT in its processes, and workers would inherit that
    try:
        met = connect(errand.address, Key(PURPOSE, errand.token), CONNECT_SECONDS)
    except (OSError, Untrusted, ShoalError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        sys.stderr.write(f"{texts.agent_has_no_way(errand.node, errand.address, why)}\n")
        return AGENT_HAS_NO_WAY
    agent = Agent(errand, AgentLine(met.endpoint, decode_launchers))
    if errand.is_warned:
        signal.signal(signal.SIGTERM, lambda *_: agent.warn())
    try:
        agent.run()
    finally:
        agent.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""An engine over any number of nodes, each with an agent: nodes may come later and go at any time.

A node is used once its versions fit and the script's folder is there, or has travelled there. A process that finds no
place waits for one. The processes of a node that is gone count as killed. Not here: getting agents to run
(`provider`), which node takes a process (`node_placement`), connections (`agent_lines`).
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import sys
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from shoal.engines import equipment, texts
from shoal.engines.engine import (
    Engine,
    Exited,
    Happening,
    MachineNotice,
    MachinesLeave,
    NoMachines,
    Placed,
    Printed,
    ProcessSpec,
    Working,
)
from shoal.engines.nodes import agent_messages as messages
from shoal.engines.nodes.agent_lines import AgentIntercepted, AgentLines, AgentLost, AgentSaid, LineNews
from shoal.engines.nodes.node_placement import Demand, NodePlacement, Place, Waits
from shoal.engines.nodes.node_words import NodeWords
from shoal.engines.nodes.provider import NodeGone, Provider, WayIn
from shoal.engines.nodes.script_files import NodeFolder, ScriptFolder, compare
from shoal.engines.waiting import wait_for
from shoal.environment import travelling_variables
from shoal.errors import AddressUnavailable, UsageError
from shoal.files import read_plain
from shoal.transport.connection.door import interception
from shoal.values import Address

GATHER_SECONDS = 90.0  # for the first nodes to be ready
PATIENCE_SECONDS = 120.0  # that processes wait while there is no node at all
KILL_SECONDS = 15.0  # that an agent may take to report the end of a process that was killed
WORDS_SECONDS = 2.0  # for a provider to say why a node was lost, before a job is refused for it
END_SECONDS = 15.0  # that agents may take to end all processes
NOT_STARTED = 127  # exit code of a process that could not be started, as shells have it
DEADLY = (signal.SIGTERM, signal.SIGINT, signal.SIGKILL, signal.SIGHUP, signal.SIGQUIT)


@dataclass(frozen=True)
class NodeEngineConfig:
    listen: Address  # where this process waits for agents; port 0: any free one
    reach: str = ""  # host at which agents reach it; empty: the host of `listen`
    folder: ScriptFolder | None = None  # None: processes have no script
    folders: Mapping[str, NodeFolder] = field(default_factory=dict)  # by node; others have it where it is here
    probe: str = ""  # a file on the file system that nodes should share; empty: none
    patience: float = PATIENCE_SECONDS
    more_room: str = ""  # where nodes come unnamed: what to do if too few came, after "take -n 2, or "


@dataclass
class _Node:
    agent: int
    hello: messages.Hello


@dataclass
class _Process:
    order: messages.Start
    node: str = ""  # empty while it waits for a place
    given: bytes | None = None  # what it is sent, while it waits


class NodeEngine(Engine):
    def __init__(self, config: NodeEngineConfig, provider: Provider) -> None:
        """Open the socket (`AddressUnavailable`) and have the provider start agents.

        `provider` is closed with the engine, and if this fails.
        """
        self._config = config
        self._provider = provider
        try:
            self._lines = AgentLines(config.listen)
        except OSError as error:
            provider.close()
            raise AddressUnavailable(texts.cannot_listen(config.listen, error.strerror or error)) from None
        self._placement = NodePlacement()
        self._versions = equipment.own_versions()
        self._nodes: dict[str, _Node] = {}  # those that have said hello, by name
        self._names: dict[int, str] = {}  # of these nodes, by agent
        self._processes: dict[str, _Process] = {}
        self._happened: list[Happening] = []
        self._troubles: dict[str, str] = {}  # by node that cannot be used: why
        self._words = NodeWords()
        self._is_gathered = False
        self._killed: dict[str, float] = {}  # by process: when its end must have been reported, by time.monotonic
        self._alone_since: float | None = None
        self.blind: list[str] = []  # nodes that do not see `probe`
        self._is_closed = False
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)  # rung if `poll` has something to return
        self._selector = selectors.EpollSelector()
        self._selector.register(self._bell, selectors.EVENT_READ)
        self._selector.register(self._lines, selectors.EVENT_READ)
        try:
            reach = config.reach or config.listen.host
            self._expected = provider.open(WayIn(Address(reach, self._lines.port), self._lines.token))
            self._selector.register(provider, selectors.EVENT_READ)
        except BaseException:
            self.close()
            raise

    def gather(self, workers: int, seconds: float = GATHER_SECONDS) -> None:
        """Wait until all first nodes can be used. Raises `UsageError` if one cannot, or if they have too few slots.

        Where the provider cannot name its nodes before they come, wait until there are slots for all workers.
        """
        limit = time.monotonic() + seconds
        while (missing := self._missing()) or (not self._expected and self._slots < workers):
            wait_for([self], min(1.0, max(0.0, limit - time.monotonic())))
            self._look()
            if self._troubles:
                self._wait_for_words()
                raise UsageError(next(iter(self._troubles.values())))
            if time.monotonic() > limit and missing:
                raise UsageError(texts.nodes_not_ready(missing, seconds))
            if time.monotonic() > limit:
                raise UsageError(texts.too_few_came(workers, self._slots, seconds, self._config.more_room))
        if self._slots < workers:
            raise UsageError(texts.too_few_slots(workers, self._slots, len(self._placement.nodes)))
        self._happened = [one for one in self._happened if not isinstance(one, MachineNotice) or one.is_problem]
        self._is_gathered = True

    @property
    def _slots(self) -> int:
        return sum(self._placement.nodes.values())

    def _missing(self) -> list[str]:
        return [node for node in self._expected if node not in self._placement.nodes]

    # The interface

    def start(self, spec: ProcessSpec) -> None:
        self._processes[spec.name] = _Process(_order(spec))
        place = self._placement.start(Demand(spec.name, spec.takes_slot, spec.apart))
        if isinstance(place, Waits):
            self._happen(MachineNotice(texts.process_waits(spec.name, place.reason)))
        else:
            self._begin(place)

    def send(self, name: str, data: bytes) -> None:
        if (process := self._processes.get(name)) is None:
            return
        if process.node:
            self._say(process.node, messages.Input(name=name, data=data))
        else:
            process.given = data

    def fileno(self) -> int:
        return self._selector.fileno()

    def poll(self) -> tuple[Happening, ...]:
        self._look()
        happened, self._happened = self._happened, []
        return tuple(happened)

    def send_signal(self, names: Collection[str], number: signal.Signals) -> None:
        there: dict[str, list[str]] = {}
        for name in [name for name in names if name in self._processes]:
            if node := self._processes[name].node:
                there.setdefault(node, []).append(name)
                if number == signal.SIGKILL:
                    self._killed.setdefault(name, time.monotonic() + KILL_SECONDS)
            elif number in DEADLY:
                self._ended(name, -number)
        for node, its in there.items():
            self._say(node, messages.SendSignal(names=tuple(its), number=number))

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        for node in self._nodes.values():
            self._lines.send(node.agent, messages.Depart())
        left = {node.agent for node in self._nodes.values()}
        limit = time.monotonic() + END_SECONDS
        while left and (patience := limit - time.monotonic()) > 0:
            wait_for([self._lines], patience)
            left -= {said.agent for said in self._lines.poll() if isinstance(said, AgentLost)}
        self._provider.close()
        self._lines.close()
        self._selector.close()
        os.close(self._bell)

    # Looking

    def _look(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._bell)
        for said in self._lines.poll():
            self._heard(said)
        for gone in self._provider.poll():
            self._explain(gone)
        now = time.monotonic()
        for node in {self._processes[name].node for name, limit in self._killed.items() if now > limit}:
            self._words.lost(node)
            self._lose(node, texts.NO_ANSWER)
        self._mind_absence(now)

    def _mind_absence(self, now: float) -> None:
        """Give up if processes wait although there has been no node for long."""
        if self._placement.nodes or not self._placement.waiting:
            self._alone_since = None
        elif self._alone_since is None:
            self._alone_since = now
        elif now - self._alone_since > self._config.patience:
            self._alone_since = now
            self._happen(NoMachines(texts.no_nodes_left(self._config.patience)))

    def _heard(self, said: LineNews) -> None:
        match said:
            case AgentIntercepted(source=source):
                self._happen(MachineNotice(interception("the launcher", source).reason))
            case AgentSaid(agent=agent, message=messages.Hello() as hello) if agent not in self._names:
                self._greet(agent, hello)
            case AgentSaid(agent=agent, message=message) if agent in self._names:
                self._obey(self._names[agent], message)
            case AgentLost(agent=agent, reason=reason) if agent in self._names:
                self._words.lost(self._names[agent])
                self._lose(self._names[agent], reason or texts.AGENT_CLOSED)

    def _obey(self, node: str, message: messages.AgentMessage) -> None:
        match message:
            case messages.FolderSeen():
                self._settle(node, message)
            case messages.FolderReady():
                self._use(node)
            case messages.FolderFailed(reason=reason):
                self._refuse(node, texts.copy_failed(node, reason))
            case messages.PrintedThere(name=name, data=data) if self._runs_on(name, node):
                self._happen(Printed(name, data))
            case messages.ExitedThere(name=name, code=code) if self._runs_on(name, node):
                self._ended(name, code)
            case messages.WorkingThere(name=name) if self._runs_on(name, node):
                self._happen(Working(name))
            case messages.Warned():
                self._happen(MachinesLeave(texts.nodes_leave(node)))
            case messages.NotStarted(name=name, reason=reason) if self._runs_on(name, node):
                self._happen(Printed(name, f"{reason}\n".encode()))
                self._ended(name, NOT_STARTED, reason)

    def _runs_on(self, name: str, node: str) -> bool:
        process = self._processes.get(name)
        return process is not None and process.node == node

    # Nodes

    def _greet(self, agent: int, hello: messages.Hello) -> None:
        if hello.node in self._nodes:
            self._lines.drop(agent)
            return
        self._words.came(hello.node)
        self._provider.came(hello.node)
        self._nodes[hello.node] = _Node(agent, hello)
        self._names[agent] = hello.node
        if trouble := equipment.difference(self._versions, hello.versions, hello.node):
            self._refuse(hello.node, trouble)
        elif (own := self._config.folder) is None:
            self._say(hello.node, messages.LookAt(folder="", script="", probe=self._config.probe))
        else:
            there = self._folder_on(hello.node, own)
            self._say(hello.node, messages.LookAt(folder=there.path, script=own.script, probe=self._config.probe))

    def _folder_on(self, node: str, own: ScriptFolder) -> NodeFolder:
        return self._config.folders.get(node, NodeFolder(str(own.path)))

    def _settle(self, node: str, seen: messages.FolderSeen) -> None:
        """Use the script's folder on a node, have a copy made there, or refuse the node."""
        own, here = self._config.folder, str(Path.cwd())
        if self._config.probe and not seen.sees_probe:
            self.blind.append(node)
        if own is None:
            self._say(node, messages.Settle(folder=".", script="", work_in=here))
            return
        there = self._folder_on(node, own)
        order = compare(own, there, seen, node)
        if isinstance(order, str):
            self._refuse(node, order)
        elif order is None:
            self._say(node, messages.Settle(folder=there.path, script=own.script, work_in=here))
        else:
            self._say(node, order)
            self._lines.send_row(self._nodes[node].agent, own.pieces(order.missing))

    def _use(self, name: str) -> None:
        slots = self._nodes[name].hello.slots
        self._happen(MachineNotice(texts.node_came(name, slots), is_problem=False))
        order = self._expected.index(name) if name in self._expected else len(self._expected)
        for place in self._placement.add_node(name, slots, order=order):
            self._begin(place)

    def _refuse(self, name: str, trouble: str) -> None:
        """A node cannot be used. Its agent ends."""
        node = self._nodes.pop(name)
        del self._names[node.agent]
        self._lines.send(node.agent, messages.Depart())
        self._words.refused(name)
        if self._troubles.get(name) != trouble:  # a provider may try again and again
            self._troubles[name] = trouble
            self._happen(MachineNotice(trouble))

    def _lose(self, name: str, why: str) -> None:
        """A node is gone."""
        node = self._nodes.pop(name)
        del self._names[node.agent]
        self._lines.drop(node.agent)
        self._troubles.setdefault(name, texts.node_gone(name, why))
        self._happen(MachineNotice(texts.node_gone(name, why)))
        for process in self._placement.remove_node(name):
            self._ended(process, -signal.SIGKILL, texts.its_node_is_gone(name, why))

    def _explain(self, gone: NodeGone) -> None:
        """A provider says why a node is gone, or cannot be had. Its connection may have closed before."""
        if gone.node in self._nodes:
            self._lose(gone.node, gone.lost if gone.lost and gone.node in self._placement.nodes else gone.reason)
        elif (text := self._words.news(gone)) and self._is_gathered:
            self._happen(MachineNotice(text))
        elif text and (gone.node in self._expected or not self._expected):
            self._troubles[gone.node] = text

    def _wait_for_words(self) -> None:
        """A node was lost: give its provider a moment to say why."""
        limit = time.monotonic() + WORDS_SECONDS
        while self._words.is_awaited and (patience := limit - time.monotonic()) > 0:
            wait_for([self], patience)
            self._look()

    def _say(self, node: str, message: messages.NodeMessage) -> None:
        if (known := self._nodes.get(node)) is not None:
            self._lines.send(known.agent, message)

    # Processes

    def _begin(self, place: Place) -> None:
        process, hello = self._processes[place.name], self._nodes[place.node].hello
        process.node = place.node
        variables = process.order.variables
        if "LOCAL_RANK" in variables:
            names = sorted(self._placement.nodes)
            variables = {
                **variables,
                **{"LOCAL_RANK": str(place.slot), "LOCAL_WORLD_SIZE": str(hello.slots)},
                **{"GROUP_RANK": str(names.index(place.node)), "GROUP_WORLD_SIZE": str(len(names))},
            }
        self._happen(Placed(place.name, place.node, hello.host, place.reason))
        self._say(place.node, msgspec.structs.replace(process.order, variables=variables))
        if process.given is not None:
            self._say(place.node, messages.Input(name=place.name, data=process.given))

    def _ended(self, name: str, code: int, reason: str = "") -> None:
        del self._processes[name]
        self._killed.pop(name, None)
        self._happen(Exited(name, code, reason))
        for place in self._placement.end(name):
            self._begin(place)

    def _happen(self, happened: Happening) -> None:
        self._happened.append(happened)
        os.eventfd_write(self._bell, 1)


def _order(spec: ProcessSpec) -> messages.Start:
    """What an agent is told. Files are read now, since the launcher may remove them any time."""
    carried = []
    for file in spec.files:
        try:
            data = read_plain(file.path, messages.BROUGHT_BYTES)
        except OSError as error:
            raise UsageError(texts.brought_unreadable(file.path, error.strerror or error)) from None
        carried.append(messages.CarriedFile(file.variable, data))
    return messages.Start(
        name=spec.name,
        command=spec.command,
        is_python=spec.command[0] == sys.executable,
        script_at=spec.command.index(spec.script) if spec.script else -1,
        variables={**travelling_variables(), **spec.variables},
        files=tuple(carried),
        takes_input=spec.takes_input,
        outlives_launcher=spec.outlives_launcher,
    )

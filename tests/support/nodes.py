"""A provider of nodes for tests: agents on this machine, or in namespaces, which need root, with own file systems."""

from __future__ import annotations

import contextlib
import os
import selectors
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from shoal.engines.nodes.node_engine import NodeEngine, NodeEngineConfig
from shoal.engines.nodes.provider import AGENT, NodeGone, Provider, WayIn
from shoal.engines.nodes.script_files import NodeFolder, read_folder
from shoal.values import Address

# Arguments: how many folders are hidden, those, then the command.
ENTER = """
set -e
hidden=$1; shift
while [ "$hidden" -gt 0 ]; do mount -t tmpfs tmpfs "$1"; hidden=$((hidden - 1)); shift; done
exec "$@"
"""


@dataclass(frozen=True)
class TestNode:
    __test__ = False

    slots: int = 8
    namespace: str = ""  # as `ip netns` has it; empty: this machine's network
    hidden: tuple[Path, ...] = ()  # folders that are empty on that node
    variables: Mapping[str, str] = field(default_factory=dict)

    def command(self) -> tuple[str, ...]:
        command = (sys.executable, *AGENT)
        if self.hidden:
            folders = tuple(map(str, self.hidden))
            command = ("unshare", "--mount", "sh", "-c", ENTER, "sh", str(len(folders)), *folders, *command)
        return ("ip", "netns", "exec", self.namespace, *command) if self.namespace else command


class NodesHere(Provider):
    """Starts an agent for each node; `add` starts another one later."""

    def __init__(self, nodes: Mapping[str, TestNode]) -> None:
        self._first = dict(nodes)
        self._selector = selectors.EpollSelector()
        self.agents: dict[str, subprocess.Popen[bytes]] = {}
        self._way_in: WayIn | None = None

    def open(self, way_in: WayIn) -> tuple[str, ...]:
        self._way_in = way_in
        for name, node in self._first.items():
            self.add(name, node)
        return tuple(self._first)

    def add(self, name: str, node: TestNode) -> None:
        assert self._way_in is not None
        agent = self.agents[name] = subprocess.Popen(
            node.command(),
            stdin=subprocess.PIPE,
            start_new_session=True,
            cwd="/",
            env={**os.environ, **node.variables},
        )
        assert agent.stdin is not None
        agent.stdin.write(self._way_in.errand_line(name, node.slots))
        agent.stdin.flush()
        self._selector.register(os.pidfd_open(agent.pid), selectors.EVENT_READ, name)

    def fileno(self) -> int:
        return self._selector.fileno()

    def poll(self) -> tuple[NodeGone, ...]:
        gone = []
        for key, _ in self._selector.select(0):
            self._selector.unregister(key.fd)
            os.close(key.fd)
            agent = self.agents[key.data]
            gone.append(NodeGone(key.data, f"its agent ended with code {agent.wait()}"))
        return tuple(gone)

    def close(self) -> None:
        for agent in self.agents.values():
            assert agent.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                agent.stdin.close()
            agent.wait()
        for key in tuple(self._selector.get_map().values()) if self._selector.get_map() else ():
            self._selector.unregister(key.fd)
            os.close(key.fd)
        self._selector.close()


@dataclass(frozen=True)
class Folders:
    """A script, and where its folder is on the nodes."""

    script: Path
    there: Mapping[str, NodeFolder] = field(default_factory=dict)
    probe: str = ""


def open_nodes(
    nodes: Mapping[str, TestNode], *, host: str = "127.0.0.1", folders: Folders | None = None, patience: float = 60.0
) -> tuple[NodeEngine, NodesHere]:
    provider = NodesHere(nodes)
    config = NodeEngineConfig(
        listen=Address(host, 0),
        folder=None if folders is None else read_folder(folders.script),
        folders={} if folders is None else folders.there,
        probe="" if folders is None else folders.probe,
        patience=patience,
    )
    return NodeEngine(config, provider), provider


def gathered(nodes: Sequence[TestNode], host: str = "127.0.0.1") -> NodeEngine:
    """An engine whose nodes are all there, named a, b, ..."""
    engine, _ = open_nodes({chr(ord("a") + number): node for number, node in enumerate(nodes)}, host=host)
    try:
        engine.gather(1)
    except BaseException:
        engine.close()
        raise
    return engine

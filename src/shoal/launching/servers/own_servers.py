"""Parameter servers as processes of this machine, and their keeper as a thread of this process.

For the launcher of one job and for `shoal servers start`. Starts, replaces and lists the servers. The keeper has a
thread of its own, so its news comes through a queue. Not here: which server is replaced when (`server_posts`, pure).
"""

from __future__ import annotations

import contextlib
import queue
import signal
import socket
import time
from dataclasses import dataclass
from pathlib import Path

from shoal.engines.engine import describe_exit
from shoal.engines.waiting import Source
from shoal.errors import ShoalError
from shoal.launching import texts
from shoal.launching.processes.running import Gone, Processes, ProcessNews
from shoal.launching.processes.specs import ServerTerms, public, reachable, server_process
from shoal.launching.servers import server_news
from shoal.launching.servers.server_posts import ServerPosts
from shoal.launching.servers.server_side import Rhythm, Seen, ServerSide
from shoal.parameters.keeper import group_events
from shoal.parameters.keeper.keeper import Keeper, KeeperConfig
from shoal.settings.setting_checks import size_of

MEMORY_SHARE = 0.9  # of what is free when the servers start
SHOWN_LINES = 15  # of a failed server's output
ENDING_SECONDS = 5.0  # that a server which has left the group may take to say why and end


@dataclass(frozen=True)
class OwnServersConfig:
    keeper: KeeperConfig
    token_file: Path
    logs: Path | None  # folder; None: output is not kept
    memory: str = ""  # that each server may hold, such as 2GB; empty: an even part of the free memory
    is_elsewhere: bool = False  # the servers may run on other machines
    space: str = ""  # the job whose staleness and clocks are reported


class OwnServers(ServerSide):
    def __init__(self, config: OwnServersConfig, processes: Processes) -> None:
        """Opens the keeper's socket (AddressUnavailable if that fails) and starts the servers."""
        self._config = config
        self._processes = processes
        memory = size_of(config.memory, named="--server-memory") if config.memory else share_of_memory(config)
        find = public if config.is_elsewhere else reachable
        self._news: queue.SimpleQueue[group_events.GroupEvent] = queue.SimpleQueue()
        self._bell, self._ringer = socket.socketpair()
        self._bell.setblocking(False)
        self._ringer.setblocking(False)
        try:
            self.keeper = Keeper(config.keeper, self._heard)
            self.keeper.start()
        except BaseException:
            self._close_bell()
            raise
        self._terms = ServerTerms(
            keeper=find(self.keeper.address),
            token_file=config.token_file,
            logs=config.logs,
            listen="auto" if config.is_elsewhere else self.keeper.address.host,
            memory=memory,
        )
        self._posts = ServerPosts(config.keeper.expected)
        self._numbers: dict[str, int] = {}  # of running servers, by name
        self._leaving: dict[str, float] = {}  # running servers that have left the group, and when to kill them
        self._seen = Seen()  # since the last look
        self._coming = 0  # the number of starting servers that the keeper was last told
        self._is_ending = False
        self._rhythm = Rhythm()
        self.is_stop_wanted = False  # an administrator has asked for the end of the group
        self._start_due(time.monotonic())
        self._tell_coming(time.monotonic())

    @property
    def serving(self) -> tuple[int, ...]:
        out = {self._numbers[name] for name in self._leaving}
        return tuple(server for server in self._posts.serving if server not in out)

    @property
    def sources(self) -> tuple[Source, ...]:
        return (self._bell,)

    @property
    def next_due(self) -> float | None:
        due = [self._rhythm.next_due, *self._leaving.values()]
        if self._posts.next_due is not None and not self._is_ending:
            due.append(self._posts.next_due)
        return min(due)

    def owns(self, name: str) -> bool:
        return name in self._numbers

    def take(self, happened: ProcessNews, now: float) -> None:
        if not isinstance(happened, Gone):
            return
        self._read_news(now)  # first: the keeper may have asked the server to go
        server = self._numbers.pop(happened.name)
        self._leaving.pop(happened.name, None)
        if not self._is_ending and happened.code != 0:
            self._seen.lines += [f"[server {server}] {line}" for line in happened.last[-SHOWN_LINES:]]
        self._lost(server, describe_exit(happened.code), now)

    def look(self, now: float) -> Seen:
        with contextlib.suppress(BlockingIOError):
            self._bell.recv(4096)
        self._read_news(now)
        self._end_leaving(now)
        if not self._is_ending:
            self._start_due(now)
            self._tell_coming(now)
        if self._rhythm.is_due(now):
            self._rhythm.sort(server_news.measured(self.keeper.status(), self._config.space), self._seen, now)
        seen, self._seen = self._seen, Seen()
        return seen

    def cease(self) -> None:
        self._is_ending = True

    def close(self) -> None:
        self._is_ending = True
        self.keeper.close()
        self._close_bell()

    def _heard(self, news: group_events.GroupEvent) -> None:
        """Called from the keeper's thread."""
        self._news.put(news)
        with contextlib.suppress(OSError):  # the bell is full, and so rings already, or is closed
            self._ringer.send(b"x")

    def _read_news(self, now: float) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                self._take_news(self._news.get_nowait(), now)

    def _take_news(self, news: group_events.GroupEvent, now: float) -> None:
        match news:
            case group_events.GroupServerJoined(server=server):
                self._posts.joined(server.number)
            case group_events.GroupServerLost(number=number, is_silent=is_silent):
                self._let_go(number, now if is_silent else now + ENDING_SECONDS)
            case group_events.ServerRemoved(number=number):
                self._posts.leaving(number)
            case group_events.MoreWanted(count=count):
                self._posts.more(count, now)
            case group_events.SpaceEnded(job=job, reason=reason):
                self._seen.lines.append(f"the servers have ended job {job}: {reason}")
            case group_events.StopWanted():
                self.is_stop_wanted = True
            case _:
                pass
        if (event := server_news.event_of(news, self._config.space)) is not None:
            self._seen.events.append(event)

    def _let_go(self, number: int, until: float) -> None:
        """A server is out of the group. Most end by themselves, and then their last lines and exit codes are shown."""
        for name, server in self._numbers.items():
            if server == number:
                self._leaving[name] = until

    def _end_leaving(self, now: float) -> None:
        """Kill servers that do not end: a stopped or hung server would block its place."""
        for name in [name for name, until in self._leaving.items() if until <= now]:
            del self._leaving[name]
            self._processes.send_signal({name}, signal.SIGKILL)

    def _start_due(self, now: float) -> None:
        for opening in self._posts.take_due(now):
            planned = server_process(self._terms, opening.server)
            try:
                self._processes.start(planned)
            except ShoalError as error:
                self._seen.lines.append(f"shoal: {error}")
                self._lost(opening.server, "could not be started", now)
                continue
            self._numbers[planned.name] = opening.server
            if opening.reason:
                self._seen.lines.append(f"server {opening.server} is started: {opening.reason}")

    def _tell_coming(self, now: float) -> None:
        """Workers do not give up their servers while replacements are being started."""
        coming = self._posts.coming(now)
        if coming != self._coming:
            self._coming = coming
            self.keeper.announce(coming)

    def _lost(self, server: int, how: str, now: float) -> None:
        had_given_up = self._posts.given_up
        if not self._posts.exited(server, how, now) or self._is_ending:
            return
        self.keeper.lose(server, f"its process {how}")
        if self._posts.given_up and not had_given_up:
            self._seen.lines.append(texts.no_more_servers(self._posts.given_up))
        if self._posts.is_hopeless:
            log = server_process(self._terms, server).log
            self._seen.failure = texts.servers_hopeless(self._posts.given_up, log)

    def _close_bell(self) -> None:
        self._bell.close()
        self._ringer.close()


def share_of_memory(config: OwnServersConfig) -> int:
    """Bytes that each server may hold by default; 0, no limit, if they run on machines that are not known here."""
    if config.is_elsewhere:
        return 0
    return int(MEMORY_SHARE * free_memory() / max(1, config.keeper.expected))


def free_memory() -> int:
    """Free bytes of this machine, or of this process's control group; 0 if not known."""
    found = []
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        found.append(1024 * int(next(line for line in lines if line.startswith("MemAvailable:")).split()[1]))
    with contextlib.suppress(OSError, ValueError):  # a group without a limit reads "max"
        group = Path("/sys/fs/cgroup")
        limit = int((group / "memory.max").read_text(encoding="ascii"))
        found.append(max(0, limit - int((group / "memory.current").read_text(encoding="ascii"))))
    return min(found, default=0)

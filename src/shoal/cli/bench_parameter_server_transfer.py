"""Push and pull, one worker: torch RPC, two plain sockets and Shoal take turns.

The baselines run in plain processes, as a script without Shoal has them, and once more in processes with the settings
that Shoal gives its own (freed memory is kept, in large pages): torch RPC, which allocates every tensor anew, gains
much by these. Only one of all of them works at a time.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from shoal.cli.bench_parameter_server_verdict import TUNED
from shoal.environment import MALLOC, inherited, process_variables
from shoal.errors import ScriptFailed
from shoal.parameters.keeper import Keeper, KeeperConfig
from shoal.parameters.space_terms import SpaceTerms
from shoal.values import Address
from shoal.wire.token_file import new_token

WORKER = "shoal.cli.bench_parameter_server_worker"
BASELINES = ("torch RPC, 1 at once", "torch RPC, 4 at once", "torch RPC, 16 at once", "two sockets")
OWN = ("Shoal, shared", "Shoal, sent")
END_SECONDS = 10.0  # for a process to end by itself
CHECK_SECONDS = 120.0  # for a worker to check what it came to, and to end
READY = "ready"


@dataclass(frozen=True)
class _Worker:
    """A process that makes one exchange for every line."""

    process: subprocess.Popen[str]

    def await_ready(self) -> None:
        self._expect(READY)

    def exchange(self, way: str) -> float:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{way}\n")
        self.process.stdin.flush()
        return float(self._expect(""))

    def finish(self) -> None:
        """It checks what it came to."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        if code := self.process.wait(CHECK_SECONDS):
            raise ScriptFailed(f"a worker of the benchmark ended with code {code}; it has said why above")

    def _expect(self, text: str) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        if not line or (text and line != text):
            raise ScriptFailed(f"a worker of the benchmark said {line!r}; what went wrong stands above")
        return line


def transfer(elements: int, turns: int, *, servers: int, baselines: bool = True) -> dict[str, list[float]]:
    """Seconds by way, one per turn; the order changes from turn to turn, and the first turn does not count."""
    with contextlib.ExitStack() as stack:
        workers = {way: worker for worker in [_shoal(stack, elements, servers)] for way in OWN}
        if baselines:
            for mark, is_tuned in (("", False), (TUNED, True)):
                plain = _plain(stack, elements, is_tuned=is_tuned)
                workers |= {way + mark: plain for way in BASELINES}
        for worker in {id(worker): worker for worker in workers.values()}.values():
            worker.await_ready()
        seconds: dict[str, list[float]] = {way: [] for way in workers}
        ways = list(workers)
        for turn in range(turns + 1):
            for way in ways[turn % len(ways) :] + ways[: turn % len(ways)]:
                took = workers[way].exchange(way.removesuffix(TUNED))
                if turn:
                    seconds[way].append(took)
        for worker in {id(worker): worker for worker in workers.values()}.values():
            worker.finish()
    return seconds


def _shoal(stack: contextlib.ExitStack, elements: int, servers: int) -> _Worker:
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    token, token_file = new_token(), folder / "token"
    token_file.touch(mode=0o600)
    token_file.write_text(token, encoding="ascii")
    spaces = tuple(SpaceTerms(name, token) for name in ("shared", "sent"))
    config = KeeperConfig(listen=Address("127.0.0.1", 0), token=token, expected=servers, spaces=spaces)
    keeper = stack.enter_context(contextlib.closing(Keeper(config, lambda _event: None)))
    keeper.start()
    common = ("--keeper", str(keeper.address), "--token-file", str(token_file))
    for number in range(servers):
        stack.enter_context(_process("-m", "shoal", "server", *common, "--number", str(number), is_tuned=True))
    arguments = ("-m", WORKER, "shoal", "--elements", str(elements), *common)
    return _Worker(stack.enter_context(_process(*arguments, is_tuned=True)))


def _plain(stack: contextlib.ExitStack, elements: int, *, is_tuned: bool) -> _Worker:
    size = ("--elements", str(elements))
    meet = ("--rpc-file", f"{stack.enter_context(tempfile.TemporaryDirectory())}/rpc")
    stack.enter_context(_process("-m", WORKER, "rpc", *size, *meet, is_tuned=is_tuned))
    listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    handed = ("--listen-fd", str(listener.fileno()))
    stack.enter_context(_process("-m", WORKER, "socket", *size, *handed, is_tuned=is_tuned, keep=listener.fileno()))
    port = ("--socket-port", str(listener.getsockname()[1]))
    return _Worker(stack.enter_context(_process("-m", WORKER, "plain", *size, *meet, *port, is_tuned=is_tuned)))


@contextlib.contextmanager
def _process(*arguments: str, is_tuned: bool, keep: int | None = None) -> Iterator[subprocess.Popen[str]]:
    """A process of the benchmark, ended with the block."""
    variables = process_variables(1)
    if not is_tuned:
        variables.pop(MALLOC, None)
    started = subprocess.Popen(
        [sys.executable, "-W", "ignore", *arguments],
        env=inherited(variables),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        pass_fds=() if keep is None else (keep,),
    )
    try:
        yield started
    finally:
        started.terminate()
        try:
            started.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            started.kill()
            started.wait()
        for stream in (started.stdin, started.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()

"""Push and pull, one worker: torch RPC, two plain sockets and Shoal take turns.

The baselines run in plain processes, as in a script without Shoal, and once more in processes with the settings that
Shoal gives its own (freed memory is kept, in large pages): torch RPC allocates every tensor anew, and gains much by
them. Only one process works at a time.
"""

from __future__ import annotations

import contextlib
import socket
import tempfile
from functools import partial
from pathlib import Path

from shoal.bench.harness import Crew, CrewMember, in_turns
from shoal.bench.parameter_server.figures import TUNED
from shoal.environment import MALLOC, inherited, process_variables
from shoal.parameters.keeper.keeper import Keeper, KeeperConfig
from shoal.parameters.keeper.space_terms import SpaceTerms
from shoal.values import Address
from shoal.wire.token_file import new_token

WORKER = "shoal.bench.parameter_server.worker"
END_SECONDS = 10.0  # for a process to end by itself
QUIET = ("-W", "ignore", "-m")  # Python without warnings, running a module
CHECK_SECONDS = 120.0  # for a worker to check what it came to, and to end


def transfer(elements: int, turns: int, *, servers: int, baselines: bool = True) -> dict[str, list[float]]:
    """Seconds by way, one per turn."""
    with contextlib.ExitStack() as stack:
        workers = [(_shoal(stack, elements, servers), "")]
        if baselines:
            workers += [(_plain(stack, elements, is_tuned=False), ""), (_plain(stack, elements, is_tuned=True), TUNED)]
        ways = {way + mark: partial(_exchange, worker, way) for worker, mark in workers for way in worker.answer()}
        seconds = in_turns(ways, turns, uncounted=1)
        for worker, _ in workers:
            worker.finish(CHECK_SECONDS)
    return seconds


def _exchange(worker: CrewMember, way: str) -> float:
    worker.order(way)
    return float(worker.answer())


def _shoal(stack: contextlib.ExitStack, elements: int, servers: int) -> CrewMember:
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    token, token_file = new_token(), folder / "token"
    token_file.touch(mode=0o600)
    token_file.write_text(token, encoding="ascii")
    spaces = tuple(SpaceTerms(name, token) for name in ("shared", "sent"))
    config = KeeperConfig(listen=Address("127.0.0.1", 0), token=token, expected=servers, spaces=spaces)
    keeper = stack.enter_context(contextlib.closing(Keeper(config, lambda _event: None)))
    keeper.start()
    crew, env = stack.enter_context(Crew(grace=END_SECONDS)), _environment(is_tuned=True)
    common = ("--keeper", str(keeper.address), "--token-file", str(token_file))
    for number in range(servers):
        crew.start(f"server {number}", *QUIET, "shoal", "server", *common, "--number", str(number), env=env)
    return crew.start("the worker", *QUIET, WORKER, "shoal", "--elements", str(elements), *common, env=env)


def _plain(stack: contextlib.ExitStack, elements: int, *, is_tuned: bool) -> CrewMember:
    size = ("--elements", str(elements))
    meet = ("--rpc-file", f"{stack.enter_context(tempfile.TemporaryDirectory())}/rpc")
    crew, env = stack.enter_context(Crew(grace=END_SECONDS)), _environment(is_tuned=is_tuned)
    crew.start("the server of torch RPC", *QUIET, WORKER, "rpc", *size, *meet, env=env)
    listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    handed, keep = ("--listen-fd", str(listener.fileno())), (listener.fileno(),)
    crew.start("the server of the sockets", *QUIET, WORKER, "socket", *size, *handed, env=env, keep=keep)
    port = ("--socket-port", str(listener.getsockname()[1]))
    return crew.start("the baselines' worker", *QUIET, WORKER, "plain", *size, *meet, *port, env=env)


def _environment(*, is_tuned: bool) -> dict[str, str]:
    """With one thread; tuned as Shoal tunes its own processes, or without that."""
    variables = process_variables(1)
    if not is_tuned:
        variables.pop(MALLOC, None)
    return inherited(variables)

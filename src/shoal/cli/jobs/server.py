"""`shoal server`: one parameter server of a group, as `shoal run --servers` and `shoal servers start` start it.

It joins the keeper of its group and serves until the keeper lets it go, or until SIGTERM or Ctrl-C. With
`--crash-at POINT:N` it kills itself when it passes that point for the Nth time, to try how the group recovers.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from shoal.cli import texts
from shoal.cli.options import Parser
from shoal.disk.job_token import read_token
from shoal.environment import TOKEN_FILE, parse_address, token_file
from shoal.errors import UsageError
from shoal.transport.connection.strangers import raise_descriptor_limit

DESCRIPTION = """\
Runs one parameter server of a group. It is started by `shoal run --servers N` and by `shoal servers start`, which keep
the group. Started by hand, it joins the keeper that listens at --keeper, under a number that was never used there."""
AUTO = "auto"  # as the host to listen on
# Where --crash-at may kill the server: on an entry's way through the ledger, and while blocks change or move.
POINTS = ("record", "recorded", "answer", "unit", "applied", "begun", "fetch", "fetched")


def parser() -> Parser:
    made = Parser(prog="shoal server", description=DESCRIPTION)
    made.add_argument("--keeper", required=True, metavar="HOST:PORT", help="where the keeper of the group listens")
    made.add_argument(
        "--token-file",
        dest="token_file",
        metavar="FILE",
        help=f"file with the group's token; default what {TOKEN_FILE} names",
    )
    made.add_argument(
        "--number", type=int, required=True, metavar="N", help="the server's own number, never used before"
    )
    made.add_argument(
        "--listen",
        default="127.0.0.1",
        metavar="HOST",
        help="default 127.0.0.1, for this machine alone; auto: the address that leads to the keeper",
    )
    made.add_argument("--memory", type=int, default=0, metavar="BYTES", help="most that it may hold; default no limit")
    made.add_argument(
        "--crash-at",
        dest="crash_at",
        metavar="POINT:N",
        help=f"chaos: kill itself at the Nth passing of {', '.join(POINTS)}",
    )
    return made


def main(arguments: Sequence[str]) -> int:
    parsed = parser().parse_all(arguments)
    keeper = parse_address(parsed.keeper, named="--keeper")
    if parsed.number < 0 or parsed.memory < 0 or not keeper.port:
        raise UsageError(texts.bad_server_options(parsed.number, parsed.memory, keeper))
    if (file := parsed.token_file or token_file()) is None:
        raise UsageError(texts.NO_TOKEN)
    token = read_token(Path(file))
    raise_descriptor_limit()
    crash_at = _crash(parsed.crash_at) if parsed.crash_at else _no_crash
    if sys.stderr.isatty():  # by hand; the launcher has words of its own
        print(f"shoal: {texts.serving(parsed.number, keeper)}", file=sys.stderr, flush=True)
    import torch

    from shoal.parameters.server.server import ServerConfig, ServerLoop
    from shoal.strategies.peers.reaching import local_host
    from shoal.training.lean_torch import spare_compiler

    torch.set_num_threads(1)
    spare_compiler()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # every worker of every job has two connections
    server = ServerLoop(
        ServerConfig(
            keeper=keeper,
            token=token,
            number=parsed.number,
            listen=local_host(keeper) if parsed.listen == AUTO else parsed.listen,
            memory=parsed.memory,
            crash_at=crash_at,
        )
    )
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, lambda *_: server.stop())
    server.run()
    return 0


def _no_crash(_point: str) -> None:
    pass


def _crash(text: str) -> Callable[[str], None]:
    name, _, count = text.partition(":")
    if name not in POINTS or not count.isascii() or not count.isdigit() or int(count) < 1:
        raise UsageError(texts.bad_crash_point(text, name, POINTS))
    passed: Counter[str] = Counter()

    def crash_at(point: str) -> None:
        passed[point] += 1
        if point == name and passed[point] == int(count):
            os.kill(os.getpid(), signal.SIGKILL)

    return crash_at

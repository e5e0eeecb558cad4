"""`shoal servers`: a group of parameter servers that many jobs may use, one after the other or at once.

`start` runs such a group (`servers_start`). The other commands send one request to its keeper and print the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from shoal.cli import texts
from shoal.cli.options import Parser
from shoal.cli.terminal_tables import columns
from shoal.disk.job_token import read_group_token
from shoal.environment import parse_address
from shoal.errors import UsageError
from shoal.parameters.keeper.keeper_client import KeeperClient
from shoal.watch.screen.slow_work import told_if_slow
from shoal.watch.wording import amount, span
from shoal.wire.keeper_messages import GroupStatus, ServerFigures

PROGRAM = "shoal servers"
COMMANDS = {
    "start": "run a group in the foreground until Ctrl-C",
    "status": "show the group's servers, what they do, and the jobs that use them",
    "add": "start more servers; their share of the parameters moves to them",
    "remove": "take one server out; first, what it holds moves to the others",
    "stop": "end the group",
}
USAGE = {
    "status": "shoal servers status ADDRESS --token-file FILE",
    "add": "shoal servers add N ADDRESS --token-file FILE",
    "remove": "shoal servers remove NUMBER ADDRESS --token-file FILE",
    "stop": "shoal servers stop ADDRESS --token-file FILE",
}
ANSWER_SECONDS = 10.0  # for the keeper to answer


def main(arguments: Sequence[str]) -> int:
    if not arguments:
        raise UsageError(texts.no_command_given(COMMANDS, PROGRAM))
    name, *rest = arguments
    if name in ("-h", "--help"):
        lines = "\n".join(f"  {command:<8} {line}" for command, line in COMMANDS.items())
        print(f"usage: {PROGRAM} COMMAND [options]\n\n{lines}")
        return 0
    if name not in COMMANDS:
        raise UsageError(texts.no_such_command(name, COMMANDS, PROGRAM))
    if name == "start":
        from shoal.cli.jobs import servers_start

        return servers_start.main(rest)
    return _ask(name, rest)


def _ask(name: str, arguments: Sequence[str]) -> int:
    made = Parser(prog=f"{PROGRAM} {name}", description=f"{COMMANDS[name].capitalize()}.", usage=USAGE[name])
    made.add_argument(
        "--token-file", dest="token_file", required=True, metavar="FILE", help="file with the group's token"
    )
    if name in ("add", "remove"):
        made.add_argument("number", type=int, metavar="N" if name == "add" else "NUMBER")
    made.add_argument("address", metavar="ADDRESS", help="HOST:PORT of the group, as `shoal servers start` prints it")
    parsed = made.parse_all(arguments)
    address = parse_address(parsed.address, named="ADDRESS")
    token = read_group_token(Path(parsed.token_file), named="--token-file")
    if name == "add" and parsed.number < 1:
        raise UsageError(texts.too_few_to_add(parsed.number))
    with (
        told_if_slow(texts.waiting_for_group(address)),
        KeeperClient(address, token, ANSWER_SECONDS) as client,
    ):
        if name == "status":
            print("\n".join(describe(client.status())))
        elif name == "stop":
            client.stop_group()
            print("the group ends")
        elif name == "add":
            client.change_servers(more=parsed.number)
            print(f"{parsed.number} more will be started; `shoal servers status {address}` shows them")
        else:
            client.change_servers(remove=(parsed.number,))
            print(f"server {parsed.number} leaves when what it holds has moved; `shoal servers status {address}` tells")
    return 0


def describe(status: GroupStatus) -> list[str]:
    """For people."""
    if status.map is None:
        return ["the group is not complete yet"]
    made = status.map
    move = "settled" if made.is_settled else "blocks are moving"
    replicas = "1 replica" if made.replicas == 1 else f"{made.replicas} replicas"
    lines = [f"version {made.version} of the map, {replicas} of each parameter, {move}: {made.reason}"]
    figures = dict(status.figures)
    rows: list[tuple[str, ...]] = [
        ("server", "host", "process", "address", "held", "limit", "requests/s", "mean wait", "busy")
    ]
    rows += [
        (
            str(server.number),
            server.host,
            str(server.process),
            str(server.address),
            *_figures(figures.get(server.number, ServerFigures())),
        )
        for server in sorted(made.servers, key=lambda server: server.number)
    ]
    lines += columns(rows, right=(0, 2, 4, 5, 6, 7, 8), indent="  ")
    lines.append(f"jobs: {', '.join(status.spaces) or 'none'}")
    return lines


def _figures(figures: ServerFigures) -> tuple[str, ...]:
    """Since the server's start."""
    seconds = max(figures.seconds, 1e-9)
    wait = figures.queue_seconds / figures.requests if figures.requests else 0.0
    limit = amount(figures.limit_bytes) if figures.limit_bytes else "none"
    rate = f"{figures.requests / seconds:,.1f}"
    return amount(figures.held_bytes), limit, rate, span(wait), f"{100 * figures.busy_seconds / seconds:.0f}%"

"""`shoal servers start`: a group of parameter servers in the foreground, for jobs that come and go.

Prints the group's address and the file that holds its token; Ctrl-C, SIGTERM or `shoal servers stop` end the group.
Servers that die are replaced. Not here: the servers (`server`), their keeper, and what jobs do with them.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from shoal.cli import texts
from shoal.cli.options import Parser
from shoal.disk.job_token import read_group_token, token_file
from shoal.engines.local import LocalEngine
from shoal.engines.waiting import wait_for
from shoal.environment import parse_address
from shoal.errors import ServersLost, UsageError
from shoal.events import AnyEvent
from shoal.launching.plaintext import spoken_plaintext
from shoal.launching.processes.running import Processes
from shoal.launching.processes.specs import public
from shoal.launching.servers.own_servers import OwnServers, OwnServersConfig
from shoal.launching.signals import Signals, caught_signals
from shoal.parameters.keeper.keeper import KeeperConfig
from shoal.settings.parameter_server_settings import ParameterServerSettings
from shoal.settings.setting_checks import MOST_LOCAL, size_of
from shoal.transport.connection.strangers import raise_descriptor_limit
from shoal.watch.server_words import notice
from shoal.wire.token_file import new_token

LOOK_SECONDS = 1.0  # between two looks at the servers when nothing happens
SOFT_STOP = 2.0  # seconds between SIGTERM and SIGKILL
DESCRIPTION = """\
Runs parameter servers for jobs: `shoal run --strategy parameter-server --servers ADDRESS --servers-token FILE`. Each
job has a name space, a quota and a key of its own there. FILE is made where it is missing; without --token-file the
token is in a private file, which is removed with the group. Ctrl-C ends the group."""


def parser() -> Parser:
    usage = "shoal servers start -n N [options]"
    made = Parser(prog="shoal servers start", description=DESCRIPTION, usage=usage)
    made.add_argument("-n", "--servers", dest="count", type=int, required=True, metavar="N", help="number of servers")
    made.add_argument(
        "--address", default="127.0.0.1:0", metavar="HOST:PORT", help="where jobs reach it (default: 127.0.0.1:0)"
    )
    made.add_argument("--token-file", dest="token_file", default="", metavar="FILE", help="file with the group's token")
    made.add_argument(
        "--plaintext", action="store_true", help="do not encrypt connections to other machines; for networks you trust"
    )
    made.add_argument(
        "--replicas", type=int, default=1, metavar="N", help="servers that hold each parameter (default: 1)"
    )
    made.add_argument(
        "--memory",
        default="",
        metavar="SIZE",
        help="most that each may hold, such as 2GB; default 90%% of what is free",
    )
    made.add_argument(
        "--server-limit",
        dest="server_limit",
        type=float,
        default=ParameterServerSettings().server_limit,
        metavar="SECONDS",
        help="of silence after which a server counts as lost (default: 1.5)",
    )
    made.add_argument("--logs", default="", metavar="FOLDER", help="where to keep what servers print; default nowhere")
    return made


def main(arguments: Sequence[str]) -> int:
    parsed = parser().parse_all(arguments)
    if not 1 <= parsed.count <= MOST_LOCAL:
        raise UsageError(texts.bad_server_count(parsed.count, MOST_LOCAL))
    if not 1 <= parsed.replicas <= parsed.count:
        raise UsageError(texts.bad_replicas(parsed.replicas, parsed.count))
    if parsed.memory:
        size_of(parsed.memory, named="--memory")
    ParameterServerSettings(server_limit=parsed.server_limit).check_values()
    address = parse_address(parsed.address, named="--address")
    logs = _folder(parsed.logs)
    raise_descriptor_limit()
    with contextlib.ExitStack() as stack:
        stack.enter_context(spoken_plaintext(parsed.plaintext))
        file = stack.enter_context(_token(parsed.token_file))
        signals = stack.enter_context(caught_signals())
        engine = stack.enter_context(contextlib.closing(LocalEngine(() if parsed.token_file else (file,))))
        processes = Processes(engine)
        keeper = KeeperConfig(
            listen=address,
            token=read_group_token(file, named="--token-file"),
            expected=parsed.count,
            replicas=parsed.replicas,
            silence_limit=parsed.server_limit,
        )
        servers = OwnServers(OwnServersConfig(keeper, file, logs, memory=parsed.memory), processes)
        stack.callback(servers.close)
        print(f"server group at {public(servers.keeper.address)}, token in {file}", flush=True)
        _supervise(servers, processes, signals)
        servers.cease()
        processes.stop(grace=SOFT_STOP)
    print("the server group has ended", flush=True)
    return 0


def _supervise(servers: OwnServers, processes: Processes, signals: Signals) -> None:
    """Replace servers that die and print news, until the group is to end."""
    while not servers.is_stop_wanted:
        now = time.monotonic()
        due = servers.next_due
        wait = LOOK_SECONDS if due is None else min(LOOK_SECONDS, max(0.0, due - now))
        wait_for((*processes.sources, signals, *servers.sources), wait)
        if signals.take():
            return
        now = time.monotonic()
        for happened in processes.poll():
            if servers.owns(happened.name):
                servers.take(happened, now)
        seen = servers.look(now)
        _print([*seen.lines, *_notices(seen.events)])
        if seen.failure:
            raise ServersLost(seen.failure)


def _notices(events: list[AnyEvent]) -> list[str]:
    return [text for event in events if (text := notice(event)) is not None]


def _print(lines: list[str]) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


def _folder(name: str) -> Path | None:
    if not name:
        return None
    folder = Path(name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(texts.not_made("logs", name, error.strerror)) from None
    return folder


@contextlib.contextmanager
def _token(named: str) -> Iterator[Path]:
    """The file with the token: `named`, made where it is missing, or a private one that is removed at the end."""
    if not named:
        with token_file(new_token()) as path:
            yield path
        return
    path = Path(named).absolute()
    with contextlib.suppress(FileExistsError):
        try:
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(new_token())
        except FileExistsError:
            raise
        except OSError as error:
            raise UsageError(texts.not_made("token-file", path, error.strerror)) from None
    yield path

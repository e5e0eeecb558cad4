"""`shoal coordinator`: a job's coordinator as a process. `shoal run` starts one; by hand, it serves any workers."""

from __future__ import annotations

import argparse
import ast
import contextlib
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from shoal.cli import texts
from shoal.cli.options import Once, Parser, add_settings, config_from
from shoal.disk import run_directory
from shoal.disk.checkpoint_place import keeping
from shoal.disk.job_token import read_token
from shoal.environment import in_plaintext, parse_address
from shoal.errors import UsageError
from shoal.events import JobStarted
from shoal.job_config import JobConfig, read_toml
from shoal.launching.plaintext import spoken_plaintext
from shoal.membership.coordinator import CoordinatorSettings, open_listener, refuse_without_token, serve
from shoal.membership.record.decision_file import FILE_NAME as DECISIONS
from shoal.membership.record.event_writer import job_start
from shoal.membership.record.first_event import first_event
from shoal.settings.parameter_server_settings import ParameterServerSettings
from shoal.transport.connection.strangers import raise_descriptor_limit
from shoal.values import Address

MOST_BYTES = 4 * 1024 * 1024  # of a file that is looked at
DESCRIPTION = """\
Runs the process that decides who is in the job: it lets workers in, gives them ranks and tells them who died.
Listening beyond this machine needs --token-file. If the coordinator of a job died, start it again with the same
--run-dir, address and token, and the job goes on. SCRIPT and its arguments are for the record, and for workers that
join later."""


def parser() -> Parser:
    made = Parser(prog="shoal coordinator", description=DESCRIPTION, usage="shoal coordinator [options] [SCRIPT ...]")
    add_settings(made)
    group = made.add_argument_group("how it is reached")
    shared: dict[str, Any] = {"action": Once, "default": argparse.SUPPRESS}
    group.add_argument("--token-file", dest="token-file", metavar="FILE", help="file that holds the token", **shared)
    group.add_argument(
        "--listen-fd",
        dest="listen-fd",
        type=int,
        metavar="N",
        help="inherited listening socket, in place of --address",
        **shared,
    )
    group.add_argument(
        "--lock-fd",
        dest="lock-fd",
        type=int,
        metavar="N",
        help="inherited lock of the run directory; default: take the lock",
        **shared,
    )
    # `shoal run` gives these: it has the group's token, and knows which settings are not defaults
    for name in ("servers-at", "servers-space", "given"):
        group.add_argument(f"--{name}", dest=name, help=argparse.SUPPRESS, **shared)
    made.add_argument("script", nargs="?", default="", metavar="SCRIPT", help="the job's script, for the record")
    made.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="the script's arguments")
    return made


def main(arguments: Sequence[str]) -> int:
    given = vars(parsed := parser().parse_all(arguments))
    raise_descriptor_limit()
    if "listen-fd" in given and "address" in given:
        raise UsageError(texts.TWO_SOCKETS)
    is_restart = _is_under_way(given.get("run-dir"))
    config = config_from(parsed, _recorded(given["run-dir"])) if is_restart else config_from(parsed)
    if config.has(ParameterServerSettings) and not {"servers-at", "servers-space"} <= given.keys():
        raise UsageError(texts.needs_run(config.strategy))
    if "given" in given:
        config = msgspec.structs.replace(config, given=tuple(filter(None, given["given"].split(","))))
    token = read_token(Path(given["token-file"])) if "token-file" in given else ""
    run_dir = Path(config.run_dir) if config.run_dir else None
    is_restart = _is_under_way(config.run_dir)
    # Take the lock first: a running job holds its address too, and "address in use" would not say why.
    with (
        in_plaintext(config.plaintext) if "listen-fd" in given else spoken_plaintext(config.plaintext),
        _held(run_dir, given.get("lock-fd")),
        _inherited(given["listen-fd"], token) if "listen-fd" in given else _listen(config, token) as listener,
    ):
        _record_settings(run_dir, config, listener)
        kept = keeping(config, is_restart=is_restart)
        return serve(
            CoordinatorSettings(
                listener=listener,
                token=token,
                config=config,
                run_dir=run_dir,
                started=_started(config, parsed.script, parsed.arguments),
                publisher=kept.publisher,
                after_generation=kept.after_generation,
                shares=kept.shares,
                servers=given.get("servers-at", ""),
                space=given.get("servers-space", ""),
                launcher=os.getppid() if "listen-fd" in given else 0,
                joins=bool(parsed.script) and imports_shoal(Path(parsed.script)),
            )
        )


def _is_under_way(run_dir: str | None) -> bool:
    """Whether an earlier coordinator has left decisions there, which this one has to go on with."""
    return bool(run_dir) and os.path.lexists(Path(str(run_dir)) / DECISIONS)


def _recorded(run_dir: str) -> Mapping[str, Any]:
    """The recorded settings of a job whose coordinator is started again by hand."""
    file = Path(run_dir) / run_directory.CONFIG
    return {name.replace("_", "-"): value for name, value in read_toml(file).items()} if os.path.lexists(file) else {}


def _record_settings(run_dir: Path | None, config: JobConfig, listener: socket.socket) -> None:
    """Write them as the launcher does: to show the job, and to start its coordinator again, its folder is enough."""
    if run_dir is None or os.path.lexists(file := run_dir / run_directory.CONFIG):
        return
    port = listener.getsockname()[1]
    host = parse_address(config.address, named="--address").host
    try:
        file.write_text(msgspec.structs.replace(config, address=str(Address(host, port))).to_toml(), encoding="utf-8")
    except OSError as error:
        raise UsageError(texts.settings_not_written(file, error.strerror)) from None


def _started(config: JobConfig, script: str, arguments: Sequence[str]) -> JobStarted:
    """Taken from the record where the job goes on, so that the command line need not name the script again."""
    try:
        known = job_start(Path(config.run_dir)) if config.run_dir and not script else None
    except OSError as error:
        raise UsageError(texts.record_unreadable(error.filename, error.strerror)) from None
    if known is not None:
        return known
    return first_event(config, script, arguments)


def _held(run_dir: Path | None, inherited: int | None) -> contextlib.AbstractContextManager[object]:
    """The run directory's lock, for as long as the coordinator runs."""
    if inherited is not None:
        try:
            return os.fdopen(inherited, "ab", buffering=0)
        except OSError as error:
            raise UsageError(texts.no_open_file(inherited, error.strerror)) from None
    if run_dir is None:
        return contextlib.nullcontext()
    with contextlib.suppress(FileExistsError):
        run_dir.mkdir(parents=True)
    return run_directory.hold(run_dir)


def _inherited(descriptor: int, token: str) -> socket.socket:
    try:
        listener = socket.socket(fileno=descriptor)
        host, port = listener.getsockname()[:2]
    except (OSError, ValueError) as error:
        raise UsageError(texts.no_listening_socket(descriptor, error)) from None
    refuse_without_token(Address(host, port), token)
    return listener


def _listen(config: JobConfig, token: str) -> socket.socket:
    listener = open_listener(parse_address(config.address, named="--address"), token)
    host, port = listener.getsockname()[:2]
    print(f"listening on {host}:{port}", flush=True)
    return listener


def imports_shoal(script: Path) -> bool:
    """Whether the script, or a module beside it that it imports, imports shoal: then its workers will join the job."""
    seen: set[Path] = set()
    waiting = [script]
    while waiting:
        path = waiting.pop()
        if path in seen:
            continue
        seen.add(path)
        for name in _imported(path):
            if name.partition(".")[0] == "shoal":
                return True
            waiting += _beside(script, name)
    return False


def _imported(path: Path) -> Iterator[str]:
    """Dotted names of the modules that a file imports, wherever in it; none where it cannot be read or parsed."""
    try:
        if path.stat().st_size > MOST_BYTES:
            return
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            yield module
            yield from (f"{module}.{alias.name}".lstrip(".") for alias in node.names)


def _beside(script: Path, name: str) -> Iterator[Path]:
    """The files of a module, where it lies beside the script."""
    if not name:
        return
    path = script.parent.joinpath(*name.split("."))
    yield from (file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file())

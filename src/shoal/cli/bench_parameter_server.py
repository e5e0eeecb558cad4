"""`shoal bench parameter-server`: push and pull against torch RPC and plain sockets, slow workers, several servers."""

from __future__ import annotations

import argparse
import contextlib
import json
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from shoal.cli import bench_parameter_server_jobs as jobs
from shoal.cli import bench_parameter_server_verdict as verdict
from shoal.cli.options import Parser
from shoal.cli.plan import free_port
from shoal.environment import inherited, process_variables
from shoal.errors import ScriptFailed, UsageError
from shoal.parameters.keeper import Keeper, KeeperConfig
from shoal.values import Address
from shoal.wire.handshake import new_token
from shoal.wire.parameter_messages import Space

PARTS = ("transfer", "slow", "servers", "loss")
WORKER = "shoal.cli.bench_parameter_server_worker"
LIMIT = 900.0  # seconds for one part
END_SECONDS = 10.0  # for a process to end by itself


def main(arguments: Sequence[str]) -> int:
    options = _options(arguments)
    results: dict[str, Any] = {}
    elements = options.megabytes * 1_000_000 // 4
    for part in options.part or PARTS[:3]:
        if part == "transfer":
            print(f"{options.megabytes} MB up and down, one worker, one server: measuring ...", flush=True)
            results[part] = transfer(elements, options.turns, servers=1)
            print(verdict.transfer_text(results[part]), flush=True)
        elif part == "servers":
            print(f"{options.megabytes} MB up and down, 1 to 4 servers: measuring ...", flush=True)
            results[part] = {count: transfer(elements, options.turns, servers=count) for count in range(1, 5)}
            print(verdict.servers_text(results[part]), flush=True)
        elif part == "slow":
            print(
                "four workers that sleep instead of computing, one of them 4 times as long: measuring ...", flush=True
            )
            results[part] = jobs.slow()
            print(verdict.slow_text(results[part]), flush=True)
        else:
            print("time to a held-out loss, in every mode: measuring ...", flush=True)
            results[part] = jobs.losses()
            print(verdict.loss_text(results[part]), flush=True)
    judged = verdict.bounds(results)
    for bound in judged:
        print(f"  {'holds ' if bound.holds else 'MISSED'} {bound.what}: {bound.found:.2f}, {bound.rule}")
    if options.json:
        results["bounds"] = [{**vars(bound), "holds": bound.holds} for bound in judged]
        Path(options.json).write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return 0 if all(bound.holds for bound in judged) else 1


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = Parser(prog="shoal bench parameter-server")
    parser.add_argument("--megabytes", type=int, default=100, help="of gradients, and of parameters (100)")
    parser.add_argument("--turns", type=int, default=15, help="turns of each way; medians are over these (15)")
    parser.add_argument("--part", choices=PARTS, action="append", help="this alone; default: all but loss")
    parser.add_argument("--json", help="write every measurement to this file")
    options = parser.parse_all(arguments)
    for name in ("megabytes", "turns"):
        if getattr(options, name) < 1:
            raise UsageError(f"--{name} is {getattr(options, name)}; it should be 1 or more")
    return options


def transfer(elements: int, turns: int, *, servers: int) -> dict[str, list[float]]:
    """Seconds by way, one per turn."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        token, token_file = new_token(), folder / "token"
        token_file.touch(mode=0o600)
        token_file.write_text(token, encoding="ascii")
        spaces = tuple(Space(job=name, token=token, quota=0) for name in ("shared", "sent"))
        config = KeeperConfig(listen=Address("127.0.0.1", 0), token=token, expected=servers, spaces=spaces)
        keeper = stack.enter_context(contextlib.closing(Keeper(config, lambda _event: None)))
        keeper.start()
        common = ("--keeper", str(keeper.address), "--token-file", str(token_file))
        for number in range(servers):
            stack.enter_context(_process("-m", "shoal", "server", *common, "--number", str(number)))
        rpc_port = str(free_port())
        size = ("--elements", str(elements))
        stack.enter_context(_process("-m", WORKER, "rpc", *size, "--rpc-port", rpc_port))
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        handed = ("--listen-fd", str(listener.fileno()))
        stack.enter_context(_process("-m", WORKER, "socket", *size, *handed, keep=listener.fileno()))
        ports = ("--rpc-port", rpc_port, "--socket-port", str(listener.getsockname()[1]))
        return _answer("worker", *size, "--turns", str(turns), *ports, *common)


def _answer(*arguments: str) -> dict[str, list[float]]:
    command = [sys.executable, "-m", WORKER, *arguments]
    try:
        done = subprocess.run(
            command, env=inherited(process_variables(1)), capture_output=True, text=True, timeout=LIMIT, check=False
        )
    except subprocess.TimeoutExpired:
        raise ScriptFailed(f"the benchmark's worker took longer than {LIMIT:g} s") from None
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        raise ScriptFailed(f"the benchmark's worker ended with code {done.returncode}: {done.stderr.strip()[-800:]}")
    found: dict[str, list[float]] = json.loads(lines[-1])
    return found


@contextlib.contextmanager
def _process(*arguments: str, keep: int | None = None) -> Iterator[None]:
    """A process of the benchmark, ended with the block."""
    started = subprocess.Popen(
        [sys.executable, *arguments],
        env=inherited(process_variables(1)),
        stdout=subprocess.DEVNULL,
        pass_fds=() if keep is None else (keep,),
    )
    try:
        yield
    finally:
        started.terminate()
        try:
            started.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            started.kill()
            started.wait()

"""What thousands of members cost the coordinator: `python benchmarks/bench_coordinator.py [--members 2000]`.

A coordinator's process and real connections from client processes, each member with a heartbeat per second, while the
coordinator beats back. Prints its share of a core, then closes half of the connections at once and counts the
generations that come of it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import multiprocessing
import os
import resource
import socket
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

from shoal.events import JobStarted
from shoal.job_config import JobConfig
from shoal.membership.channel import PURPOSE
from shoal.membership.coordinator import CoordinatorSettings, open_listener, serve
from shoal.transport.connection.handshake import ConnectorHandshake, Key
from shoal.values import Address
from shoal.wire.messages import (
    PROTOCOL_VERSION,
    ExchangeBroken,
    Formed,
    Heartbeat,
    Join,
    body_length,
    decode_coordinator,
    encode,
)
from shoal.wire.token_file import new_token

CLIENT_PROCESSES = 2
AT_ONCE = 50  # connections that are being made at a time
TICKS = os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--members", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=10.0, help="to measure for")
    given = parser.parse_args()
    _allow_files(given.members)
    token = new_token()
    with tempfile.TemporaryDirectory() as folder, open_listener(Address("127.0.0.1", 0), token) as listener:
        address = Address(*listener.getsockname())
        coordinator = multiprocessing.Process(target=_serve, args=(listener, token, given.members, folder))
        coordinator.start()
        halves = [_Members(address, token, numbers) for numbers in _shared_out(given.members)]
        try:
            for half in halves:
                half.wait("in generation 1")
            before, started = _cpu_seconds(coordinator.pid), time.monotonic()
            time.sleep(given.seconds)
            share = (_cpu_seconds(coordinator.pid) - before) / (time.monotonic() - started)
            print(f"{given.members} members with a heartbeat per second: {share:.1%} of a core")
            started = time.monotonic()
            halves[0].process.kill()
            halves[1].tell("broken")
            halves[1].wait("in generation 2")
            seconds = time.monotonic() - started
            print(f"half of them die at once: the others are in the next generation after {seconds:.2f} s")
            time.sleep(3.0)
            halves[1].tell("count")
            print(f"generations that were formed: {halves[1].answer()}")
        finally:
            for half in halves:
                half.process.kill()
                half.process.join()
            coordinator.terminate()
            coordinator.join(5.0)
            coordinator.kill()
            coordinator.join()


def _serve(listener: socket.socket, token: str, members: int, folder: str) -> None:
    config = JobConfig(workers=members)  # not validated: these are not processes of one machine
    started = JobStarted(
        script="", arguments=(), workers=members, strategy="all-reduce", schedule="auto", codec="identity", seed=0
    )
    serve(CoordinatorSettings(listener, token, config, Path(folder) / "run", started))


def _shared_out(members: int) -> list[range]:
    """By the process that holds their connections."""
    return [range(first, members, CLIENT_PROCESSES) for first in range(CLIENT_PROCESSES)]


def _cpu_seconds(process: int | None) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def _allow_files(members: int) -> None:
    needed = members + 200
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(needed, hard), hard))


class _Members:
    """The connections of many members, in a process of their own."""

    def __init__(self, address: Address, token: str, numbers: range) -> None:
        self._pipe, theirs = multiprocessing.Pipe()
        self.process = multiprocessing.Process(target=_run_members, args=(address, token, numbers, theirs))
        self.process.start()

    def tell(self, word: str) -> None:
        self._pipe.send(word)

    def answer(self) -> str:
        return str(self._pipe.recv())

    def wait(self, word: str) -> None:
        while (answer := self.answer()) != word:
            print(answer, flush=True)


def _run_members(address: Address, token: str, numbers: range, pipe: Connection) -> None:
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_Crowd(address, token, pipe).run(numbers))


class _Crowd:
    def __init__(self, address: Address, token: str, pipe: Connection) -> None:
        self._address = address
        self._token = token
        self._pipe = pipe
        self._writers: dict[int, asyncio.StreamWriter] = {}
        self._generations: dict[int, set[int]] = {}  # members that have heard of it, by number
        self._room = asyncio.Semaphore(AT_ONCE)

    async def run(self, numbers: range) -> None:
        self._numbers = numbers
        asyncio.get_running_loop().add_reader(self._pipe.fileno(), self._obey)
        await asyncio.gather(*(self._member(number) for number in numbers))

    def _obey(self) -> None:
        word = self._pipe.recv()
        if word == "count":
            self._pipe.send(str(len(self._generations)))
            return
        broken = encode(
            ExchangeBroken(generation=1, step=1, operation="all-reduce", peer=None, reason="reset", holds=1)
        )
        for writer in self._writers.values():
            writer.write(broken)

    async def _member(self, number: int) -> None:
        async with self._room:
            reader, writer = await asyncio.open_connection(self._address.host, self._address.port)
            handshake = ConnectorHandshake(Key(PURPOSE, self._token))
            writer.write(handshake.open(insists=False))
            writer.write(handshake.take(await reader.readexactly(handshake.wanted)).send)
            await reader.readexactly(handshake.wanted)
            where = Address("127.0.0.1", 7000)
            join = Join(version=PROTOCOL_VERSION, worker=number, host="here", process=number, address=where)
            writer.write(encode(join))
        self._writers[number] = writer
        beats = asyncio.create_task(self._beat(writer))
        try:
            while True:
                body = await reader.readexactly(body_length(await reader.readexactly(4)))
                if len(body) > 100 and isinstance(message := decode_coordinator(body), Formed):
                    self._formed(message.generation.number, number)
        finally:
            beats.cancel()

    def _formed(self, generation: int, member: int) -> None:
        heard = self._generations.setdefault(generation, set())
        heard.add(member)
        if len(heard) == len(self._numbers):
            self._pipe.send(f"in generation {generation}")

    async def _beat(self, writer: asyncio.StreamWriter) -> None:
        step = 0
        while True:
            step += 1
            writer.write(encode(Heartbeat(generation=1, step=step, operation="forward and backward")))
            await asyncio.sleep(1.0)


if __name__ == "__main__":
    main()

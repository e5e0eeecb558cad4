"""Mailboxes between real processes: what is sent arrives, and who is killed or stopped is named by all who wait."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

import pytest
import torch

from shoal.collectives.mailbox.mailbox import Mailbox
from shoal.collectives.mailbox.pieces import SharedSlots
from shoal.errors import PeerLost
from shoal.transport.native import native
from support.mailboxes import connections_of, open_mailbox

LANES = ("memory", "staged", "tcp")
SIZE = 3
LIMIT = 1.0  # seconds that a process may be stopped
Program = Callable[[Mailbox, Connection], None]


def run(rank: int, lane: str, pipe: Connection, program: Program, limit: float) -> None:
    """One rank. Its bytes for the others go through the parent."""

    def exchange(data: bytes) -> list[bytes]:
        pipe.send(data)
        return list(pipe.recv())

    mailbox = open_mailbox(lane, SIZE, rank, exchange, _sockets.pop(rank), limit)
    for others in _sockets.values():
        for connection in others.values():
            connection.close()
    try:
        program(mailbox, pipe)
    except PeerLost as lost:
        pipe.send((lost.peer, str(lost)))
    mailbox.close()


_sockets: dict = {}  # by rank: what forked children find


@contextmanager
def processes(lane: str, program: Program, limit: float = LIMIT) -> Iterator[list[tuple[BaseProcess, Connection]]]:
    context = multiprocessing.get_context("fork")  # torch is there already
    _sockets.update(enumerate(connections_of(lane, SIZE)))
    made = []
    try:
        for rank in range(SIZE):
            ours, theirs = context.Pipe()
            process = context.Process(target=run, args=(rank, lane, theirs, program, limit))
            process.start()
            theirs.close()
            made.append((process, ours))
        for connections in _sockets.values():
            for connection in connections.values():
                connection.close()
        _sockets.clear()
        for _ in range(2):
            said = [pipe.recv() for _, pipe in made]
            for _, pipe in made:
                pipe.send(said)
        yield made
    finally:
        for process, pipe in made:
            process.kill()
            process.join()
            process.close()
            pipe.close()


def pattern(number: int, size: int) -> torch.Tensor:
    return (torch.arange(size) + number) % 127


def all_to_all(mailbox: Mailbox, pipe: Connection) -> None:
    others = [other for other in range(mailbox.size) if other != mailbox.rank]
    for number, size in enumerate((0, 1, 300, 3000, 100_000, 1_000_000)):
        sends = [mailbox.send(pattern(number + mailbox.rank, size), other, tag=number) for other in others]
        for other in reversed(others):
            tensor = torch.full((size,), -1)
            mailbox.receive(tensor, other, tag=number).wait()
            assert torch.equal(tensor, pattern(number + other, size)), (other, size)
        for pending in sends:
            pending.wait()
    pipe.send("all arrived")


@pytest.mark.parametrize("lane", LANES)
def test_processes_exchange_messages_of_all_sizes_and_end_cleanly(lane: str) -> None:
    with processes(lane, all_to_all) as made:
        assert [pipe.recv() for _, pipe in made] == ["all arrived"] * 3
        for process, _ in made:
            process.join(30.0)
        assert [process.exitcode for process, _ in made] == [0, 0, 0]


@pytest.fixture
def one_core() -> Iterator[None]:
    """For this thread and the processes it makes: they have to share it."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    yield
    os.sched_setaffinity(0, before)


def there_and_back(mailbox: Mailbox, pipe: Connection) -> None:
    """Long messages between ranks 0 and 1; says whether bytes came over a stage."""
    fronts = []
    take = SharedSlots.take
    SharedSlots.take = lambda stage, pull: fronts.append(take(stage, pull)) or fronts[-1]  # type: ignore[method-assign]  # a spy
    for number in range(8 if mailbox.rank < 2 else 0):
        size = 1_048_576 + 131_072 * number + number  # elements of 4 bytes
        sent, received = pattern(number + mailbox.rank, size).int(), torch.full((size,), -1, dtype=torch.int32)
        steps = [lambda: mailbox.send(sent, 1 - mailbox.rank), lambda: mailbox.receive(received, 1 - mailbox.rank)]  # noqa: B023  called in this turn
        for step in steps if mailbox.rank == 0 else reversed(steps):
            step().wait()
        assert torch.equal(received, pattern(number + 1 - mailbox.rank, size).int()), size
    pipe.send(max(fronts, default=0) > 0)


def test_processes_that_share_a_core_stage_long_messages(one_core: None) -> None:
    with processes("memory", there_and_back) as made:
        assert [pipe.recv() for _, pipe in made] == [native is not None, native is not None, False]
        for process, _ in made:
            process.join(30.0)
        assert [process.exitcode for process, _ in made] == [0, 0, 0]


def wait_for_the_next(mailbox: Mailbox, pipe: Connection) -> None:
    """Rank 0 waits for rank 1, rank 2 for rank 0: only one of them waits for the one that ends."""
    pending = mailbox.receive(torch.zeros(4), (mailbox.rank + 1) % 3, tag=2)
    pipe.send("ready")
    pending.wait()


def exchange_for_ever(mailbox: Mailbox, pipe: Connection, elements: int = 1_000_000) -> None:
    large, small = torch.zeros(elements), torch.zeros(4)
    after, before = (mailbox.rank + 1) % 3, (mailbox.rank - 1) % 3
    for number in range(1_000_000):
        started = [mailbox.send(large, after, tag=1), mailbox.send(small, after)]
        started += [mailbox.receive(torch.zeros(4), None), mailbox.receive(torch.zeros_like(large), before, tag=1)]
        for pending in started:
            pending.wait()
        if number == 3:
            pipe.send("ready")


def exchange_long_for_ever(mailbox: Mailbox, pipe: Connection) -> None:
    exchange_for_ever(mailbox, pipe, 4_000_000)


def be_called_back(mailbox: Mailbox, pipe: Connection) -> None:
    """Nobody waits in the mailbox: the background thread notices."""
    pending = mailbox.receive(torch.zeros(4), None)
    pending.when_done(lambda: pipe.send((pending.error.peer, str(pending.error))))
    pipe.send("ready")
    pipe.recv()


@pytest.mark.parametrize("program", [wait_for_the_next, exchange_for_ever, be_called_back])
@pytest.mark.parametrize("lane", LANES)
def test_every_survivor_names_the_process_that_was_killed(lane: str, program: Program) -> None:
    with processes(lane, program) as made:
        assert [pipe.recv() for _, pipe in made] == ["ready"] * 3
        os.kill(made[1][0].pid, signal.SIGKILL)
        for rank in (0, 2):
            peer, text = made[rank][1].recv()
            assert peer == 1, text
            assert "rank 1 is gone" in text
            assert "noticed in" in text


def test_who_is_killed_while_it_stages_is_named(one_core: None) -> None:
    test_every_survivor_names_the_process_that_was_killed("memory", exchange_long_for_ever)


def test_a_process_that_stays_stopped_is_named() -> None:
    with processes("memory", wait_for_the_next) as made:
        assert [pipe.recv() for _, pipe in made] == ["ready"] * 3
        os.kill(made[1][0].pid, signal.SIGSTOP)
        heard = [made[rank][1].recv() for rank in (0, 2)]
        assert [peer for peer, _ in heard] == [1, 1]
        assert any(f"its process {made[1][0].pid} has been stopped for 1 s" in text for _, text in heard), heard


def send_when_told(mailbox: Mailbox, pipe: Connection) -> None:
    pipe.send("ready")
    if mailbox.rank == 1:
        pipe.recv()
        for rank in (0, 2):
            mailbox.send(torch.ones(4), rank).wait()
    else:
        mailbox.receive(torch.zeros(4), 1).wait()
    pipe.send("arrived")


def test_a_process_that_is_stopped_for_a_moment_is_waited_for() -> None:
    with processes("memory", send_when_told, limit=30.0) as made:
        assert [pipe.recv() for _, pipe in made] == ["ready"] * 3
        os.kill(made[1][0].pid, signal.SIGSTOP)
        made[1][1].send("go")
        assert not made[0][1].poll(0.6)  # by then it was seen to be stopped
        os.kill(made[1][0].pid, signal.SIGCONT)
        assert [pipe.recv() for _, pipe in made] == ["arrived"] * 3

"""Run as a program: a worker that does what it is told, line by line, on stdin, and answers on stdout.

Arguments: host, port, token, worker number. Not a training loop: only its membership is real. Commands:

    wait N              answers with the first generation after N, or with the job's error
    position STEP OP    the next heartbeats carry it
    broken GENERATION STEP PEER    an exchange failed
    ready GENERATION    it is in no group and wants to be let in
    advise TEXT         an event
    fail TEXT           the script raised
    leave               done; the connection closes
    hand-over           it goes, and the job goes on
    fork                starts a child that inherits everything and only sleeps
    exit CODE           at once, like a crash
"""

from __future__ import annotations

import os
import socket
import sys
import time

from shoal.errors import ShoalError
from shoal.events import Advised
from shoal.membership.client import CoordinatorClient
from shoal.values import Address
from shoal.wire.messages import PROTOCOL_VERSION, ExchangeBroken, Join, Ready


def answer(text: str) -> None:
    sys.stdout.write(text.replace("\n", "\\n") + "\n")
    sys.stdout.flush()


def obey(client: CoordinatorClient, worker: int, command: str, rest: str) -> None:
    if command == "wait":
        try:
            generation = client.wait_for_generation(int(rest))
        except ShoalError as error:
            answer(f"{type(error).__name__}: {error}")
        else:
            answer(f"generation {generation.number} rank {generation.rank_of(worker)} of {generation.size}")
    elif command == "position":
        step, operation = rest.split(" ", 1)
        client.set_position(int(step), operation)
    elif command == "broken":
        generation, step, peer = (int(word) for word in rest.split())
        client.tell(
            ExchangeBroken(
                generation=generation,
                step=step,
                operation="all-reduce of gradients",
                peer=peer,
                reason="connection reset",
                holds=generation,
            )
        )
    elif command == "ready":
        client.tell(Ready(generation=int(rest)))
    elif command == "advise":
        client.report(Advised(worker=worker, text=rest))
    elif command == "fail":
        client.failed(step=3, error="ScriptFailed", text=rest)
    elif command in ("leave", "hand-over"):
        client.leave(step=9, reason="script finished", is_handover=command == "hand-over")
        client.close()
    elif command == "fork":
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
        answer(str(child))
    elif command == "exit":
        os._exit(int(rest))


def main() -> None:
    host, port, token, number = sys.argv[1:]
    worker = int(number)
    join = Join(
        version=PROTOCOL_VERSION,
        worker=worker,
        host=socket.gethostname(),
        process=os.getpid(),
        address=Address("127.0.0.1", 7000 + worker),
    )
    try:
        client = CoordinatorClient.connect(Address(host, int(port)), token, join, timeout=30)
    except ShoalError as error:
        answer(f"{type(error).__name__}: {error}")
        return
    client.on_interrupt = lambda reason, _formed: answer(f"interrupted: {reason}")
    answer("joined")
    for line in sys.stdin:
        command, _, rest = line.rstrip("\n").partition(" ")
        obey(client, worker, command, rest)
    client.close()


if __name__ == "__main__":
    main()

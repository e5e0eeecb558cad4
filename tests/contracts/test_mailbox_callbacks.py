"""What the callback of a message may do: it runs in whichever thread has finished the message."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from shoal.collectives.mailbox.delivery import Delivery
from shoal.collectives.mailbox.mailbox import Mailbox
from shoal.errors import Aborted
from support.collectives import PATIENCE
from support.mailboxes import LANES, mailboxes

LONG = 3_000_000  # elements: read where they lie, staged, or asked for


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture(params=LANES)
def pair(request: pytest.FixtureRequest) -> Iterator[list[Mailbox]]:
    """Of three ranks, so that closing one end leaves others."""
    before, descriptors = set(threading.enumerate()), open_descriptors()
    with mailboxes(request.param, 3) as made:
        yield made
    for thread in set(threading.enumerate()) - before:
        thread.join(PATIENCE)  # one that closed its own mailbox ends by itself
        assert not thread.is_alive()
    assert open_descriptors() == descriptors


def in_callback(delivery: Delivery, call: Callable[[], object]) -> threading.Event:
    """Set when the call has returned."""
    returned = threading.Event()

    def do() -> None:
        call()
        returned.set()

    delivery.when_done(do)
    return returned


@pytest.mark.parametrize("elements", [4, LONG], ids=["short", "long"])
@pytest.mark.parametrize("waits", [True, False], ids=["who waits", "the background thread"])
def test_a_callback_may_close_its_mailbox(pair: list[Mailbox], elements: int, waits: bool) -> None:
    receiver, sender = pair[0], pair[1]
    tensor, never = torch.zeros(elements), receiver.receive(torch.zeros(1), 2)
    delivery = receiver.receive(tensor, 1)
    returned = in_callback(delivery, receiver.close)
    waiting = threading.Thread(target=lambda: delivery.wait(PATIENCE))
    if waits:
        waiting.start()
    sent = sender.send(torch.ones(elements), 0)
    assert sent.wait(PATIENCE)
    assert returned.wait(PATIENCE), "closing waits for itself"
    if waits:
        waiting.join(PATIENCE)
        assert not waiting.is_alive()
    assert (tensor == 1).all()
    for later in (never, receiver.receive(torch.zeros(1), 2)):
        with pytest.raises(Aborted, match="closed"):
            later.wait(PATIENCE)


def test_a_callback_of_a_send_may_close_its_mailbox(pair: list[Mailbox]) -> None:
    """Who waits for a long send leads, and is told in its own thread."""
    tensor = torch.zeros(LONG)
    received = pair[0].receive(tensor, 1)
    sent = pair[1].send(torch.ones(LONG), 0)
    returned = in_callback(sent, pair[1].close)
    waiting = threading.Thread(target=lambda: received.wait(PATIENCE))
    waiting.start()
    sent.wait(PATIENCE)
    assert returned.wait(PATIENCE)
    waiting.join(PATIENCE)
    assert (tensor == 1).all()


def test_two_callbacks_may_close_one_mailbox_at_once(pair: list[Mailbox]) -> None:
    receiver = pair[0]
    deliveries = [receiver.receive(torch.zeros(1), source) for source in (1, 2)]
    returned = [in_callback(delivery, receiver.close) for delivery in deliveries]
    for source in (1, 2):
        pair[source].send(torch.ones(1), 0)
    assert all(each.wait(PATIENCE) for each in returned)


def test_a_callback_may_wait_for_another_message(pair: list[Mailbox]) -> None:
    receiver, tensor = pair[0], torch.zeros(LONG)
    first = receiver.receive(torch.zeros(4), 1)

    def go_on() -> None:
        following = receiver.receive(tensor, 2)
        pair[2].send(torch.ones(LONG), 0)
        following.wait(PATIENCE)

    returned = in_callback(first, go_on)
    pair[1].send(torch.ones(4), 0)
    assert first.wait(PATIENCE)
    assert returned.wait(PATIENCE), "waiting waits for itself"
    assert (tensor == 1).all()

"""The lane over TCP against a peer that misbehaves: bytes that are no letters, half letters, half messages, silence."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator

import pytest
import torch

from shoal.collectives.mailbox import mailbox_progress
from shoal.collectives.mailbox.letters import LETTER_BYTES, Letter, LetterKind, pack
from shoal.collectives.mailbox.mailbox import Mailbox
from shoal.collectives.mailbox.tcp_lane import TcpLane
from shoal.errors import PeerLost, WireError
from shoal.transport.connection import silence
from shoal.transport.mesh.stream_ending import FINISHED, StreamEnding, pack_ending
from support.mailboxes import connections_of

FLOAT32 = 9


@pytest.fixture
def ends() -> Iterator[tuple[Mailbox, socket.socket]]:
    """Rank 0's mailbox, and rank 1's end of the connection."""
    ours, theirs = connections_of("tcp", 2)
    made = Mailbox(0, 2, [TcpLane(ours, 5.0)])
    yield made, theirs[0]
    made.close()
    theirs[0].close()


def test_a_message_that_comes_byte_by_byte_is_put_together(ends: tuple[Mailbox, socket.socket]) -> None:
    mailbox, peer = ends
    tensor = torch.zeros(2)
    pending = mailbox.receive(tensor, 1, tag=3)
    for byte in pack(Letter(LetterKind.MESSAGE, FLOAT32, 8, 3, 0, 8)) + torch.tensor([1.0, 2.0]).numpy().tobytes():
        assert not pending.is_done
        peer.send(bytes([byte]))
    assert pending.wait(30.0)
    assert tensor.tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    ("said", "text"),
    [
        (bytes(LETTER_BYTES), "0 as its kind"),
        (b"GET / HTTP/1.1\r\nHost: somebody\r\nAccept: */*\r\n\r\n" + bytes(50), "71 as its kind"),
        (pack(Letter(LetterKind.MESSAGE, FLOAT32, 1 << 40, 0, 0, 1 << 40)), "announces 1099511627776 bytes"),
        (pack(Letter(LetterKind.MESSAGE, FLOAT32, 4, 0, 0, 8)), "announces 4 bytes of 8"),
        (pack(Letter(LetterKind.OFFER, FLOAT32, 9, 0, 0, 8)), "announces 9 bytes of 8"),
        (pack(Letter(LetterKind.DATA, FLOAT32, 4, 0, 7, 4)), "4 bytes of message 7: nobody asked"),
        (pack(Letter(LetterKind.GO, number=5)), "answers message 5, which this rank has not offered"),
    ],
)
def test_what_is_no_letter_ends_the_mailbox(ends: tuple[Mailbox, socket.socket], said: bytes, text: str) -> None:
    mailbox, peer = ends
    pending = mailbox.receive(torch.zeros(2), 1)
    peer.send(said)
    with pytest.raises(WireError, match=text):
        pending.wait()


@pytest.mark.parametrize(
    ("last", "text"),
    [
        (b"", "rank 1 is gone: its connection closed without a word"),
        (pack(Letter(LetterKind.MESSAGE, FLOAT32, 8, 0, 0, 8)), "rank 1 is gone: its connection closed in the middle"),
        (pack_ending(FINISHED), "rank 1 left: it had finished"),
        (pack_ending(StreamEnding(announced=True)), "rank 1 left: it gave up"),
    ],
)
def test_a_closed_connection_is_named_by_its_last_bytes(
    ends: tuple[Mailbox, socket.socket], last: bytes, text: str
) -> None:
    mailbox, peer = ends
    pending = mailbox.receive(torch.zeros(2), 1)
    peer.send(last)
    peer.close()
    with pytest.raises(PeerLost, match=text) as error:
        pending.wait()
    assert error.value.peer == 1


def test_a_connection_that_ends_in_the_middle_of_a_long_message_fails_it(ends: tuple[Mailbox, socket.socket]) -> None:
    mailbox, peer = ends
    size = 4 * 100_000
    peer.send(pack(Letter(LetterKind.OFFER, FLOAT32, 0, 0, 0, size)))
    pending = mailbox.receive(torch.zeros(100_000), 1)
    asked = peer.recv(LETTER_BYTES, socket.MSG_WAITALL)
    assert asked == pack(Letter(LetterKind.GO, number=0))
    peer.send(pack(Letter(LetterKind.DATA, length=size, number=0)) + bytes(1000))
    peer.close()
    with pytest.raises(PeerLost, match="in the middle of a transfer"):
        pending.wait()


@pytest.mark.parametrize("is_awaited", [True, False], ids=["awaited", "early"])
def test_an_offer_is_answered_before_what_travels_with_it_has_come(
    ends: tuple[Mailbox, socket.socket], is_awaited: bool
) -> None:
    """And a receive that comes while it is on its way gets it too."""
    mailbox, peer = ends
    values, target = torch.arange(100_000, dtype=torch.float32), torch.zeros(100_000)
    data = values.numpy().tobytes()
    ahead = 4 * 50_000
    offer = pack(Letter(LetterKind.OFFER, FLOAT32, ahead, 0, 0, len(data)))
    if is_awaited:
        pending = mailbox.receive(target, 1)
        peer.sendall(offer)
    else:
        peer.sendall(offer + data[:1000])
        assert not mailbox.receive(torch.zeros(1), 1, tag=1).wait(0.1)  # the offer has begun to arrive
        pending = mailbox.receive(target, 1)
        peer.sendall(data[1000:ahead])
    assert peer.recv(LETTER_BYTES, socket.MSG_WAITALL) == pack(Letter(LetterKind.GO, number=0))
    if is_awaited:
        peer.sendall(data[:ahead])
    peer.sendall(pack(Letter(LetterKind.DATA, length=len(data) - ahead, number=0)) + data[ahead:])
    assert pending.wait(30.0)
    assert torch.equal(target, values)


def test_a_machine_that_does_not_answer_any_more_is_named(
    ends: tuple[Mailbox, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mailbox_progress, "LOOK_SECONDS", 0.0)
    mailbox, _ = ends
    pending = mailbox.receive(torch.zeros(2), 1)
    assert not pending.wait(0.1)
    monkeypatch.setattr(silence, "unanswered", lambda _: 5.1)
    with pytest.raises(PeerLost, match="rank 1 cannot be reached any more: its machine does not answer"):
        pending.wait()


class Told:
    """A recipient that writes down which ranks have left, in the order in which it is told."""

    def __init__(self) -> None:
        self.left: list[int] = []

    def ended(self, rank: int, ending: StreamEnding, why: str) -> None:
        self.left.append(rank)


def test_a_rank_that_gave_up_inside_a_letter_is_told_after_the_one_it_gave_up_for() -> None:
    """Rank 2 was cut off first in the kernel's eyes; what rank 1 said before lies in its own stream."""
    ours, first, second = connections_of("tcp", 3)
    lane = TcpLane(ours, 5.0)
    with select.epoll() as epoll:
        lane.watch(epoll)
        first[0].sendall(pack_ending(StreamEnding(announced=True)))
        first[0].close()
        second[0].sendall(pack(Letter(LetterKind.MESSAGE, FLOAT32, 8, 3, 0, 8))[:-3])
        second[0].close()
        told = Told()
        for _ in range(2):  # what rank 2 sent, then the end of its stream
            lane.collect(told, [(ours[2].fileno(), select.EPOLLIN)])
        assert told.left == [1, 2]
    lane.close()
    for end in (first[2], second[1]):
        end.close()

"""What every mailbox promises, over each lane, between threads: who gets what, and that nobody waits for ever."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator

import pytest
import torch

from shoal.collectives import texts
from shoal.collectives.mailbox import post as mailbox_post
from shoal.collectives.mailbox.mailbox import Mailbox
from shoal.errors import UsageError, WorkersDisagree
from support.collectives import in_threads, succeed
from support.mailboxes import LANES, mailboxes

SIZES = (0, 1, 1000, 40_000, 70_000, 300_000, 20_000_000)  # bytes: with the letter, through a ring, where they lie


@pytest.fixture(params=LANES)
def lane(request: pytest.FixtureRequest) -> Iterator[str]:
    before = set(threading.enumerate())
    yield request.param
    assert set(threading.enumerate()) <= before


def filled(size: int, value: int) -> torch.Tensor:
    return torch.full((size,), value % 251, dtype=torch.uint8)


def receive(mailbox: Mailbox, size: int, source: int | None, tag: int = 0) -> torch.Tensor:
    tensor = torch.zeros(size, dtype=torch.uint8)
    assert mailbox.receive(tensor, source, tag).wait()
    return tensor


@pytest.mark.parametrize("size", SIZES)
def test_a_message_of_any_size_arrives_whether_it_is_awaited_or_waits(lane: str, size: int) -> None:
    with mailboxes(lane, 3) as made:
        sent = torch.randint(0, 256, (size,), dtype=torch.uint8)

        def send() -> None:
            for _ in range(2):
                made[2].send(sent, 0, tag=5).wait()

        def take() -> None:
            early = torch.zeros(size, dtype=torch.uint8)
            awaited = made[0].receive(early, 2, tag=5)
            assert awaited.wait()
            assert awaited.source == 2
            time.sleep(0.02)  # the second one is there before it is asked for
            assert torch.equal(early, sent)
            assert torch.equal(receive(made[0], size, 2, tag=5), sent)

        succeed(send, take)


def test_messages_of_one_tag_arrive_in_order_whatever_their_sizes(lane: str) -> None:
    sizes = [random.Random(1).choice((0, 8, 3000, 40_000, 300_000)) for _ in range(200)]
    with mailboxes(lane, 2) as made:

        def send() -> None:
            for number, size in enumerate(sizes):
                made[0].send(filled(size, number), 1).wait()

        def take() -> None:
            for number, size in enumerate(sizes):
                assert torch.equal(receive(made[1], size, 0), filled(size, number)), number

        succeed(send, take)


def test_tags_and_sources_may_be_received_in_any_order(lane: str) -> None:
    with mailboxes(lane, 3) as made:
        sends = [made[source].send(filled(size, 10 * source + tag), 0, tag)
                 for source in (1, 2) for tag, size in ((0, 10), (1, 100_000), (2, 10))]  # fmt: skip
        for source in (2, 1):
            for tag, size in ((2, 10), (0, 10), (1, 100_000)):
                assert torch.equal(receive(made[0], size, source, tag), filled(size, 10 * source + tag))
        for pending in sends:
            pending.wait()


def test_a_receive_from_any_rank_says_who_sent(lane: str) -> None:
    with mailboxes(lane, 4) as made:
        receives = []
        for _ in range(3):
            tensor = torch.zeros(100_000, dtype=torch.uint8)
            receives.append((made[1].receive(tensor, None, tag=3), tensor))
        sends = [made[source].send(filled(100_000, source), 1, tag=3) for source in (3, 0, 2)]
        for pending, tensor in receives:
            pending.wait()
            assert pending.source is not None
            assert torch.equal(tensor, filled(100_000, pending.source))
        for pending in sends:
            pending.wait()
        assert sorted(pending.source for pending, _ in receives) == [0, 2, 3]


def test_ranks_that_all_send_long_messages_first_do_not_block_each_other(lane: str) -> None:
    with mailboxes(lane, 3) as made:

        def swap(rank: int) -> None:
            others = [other for other in range(3) if other != rank]
            sends = [made[rank].send(filled(3_000_000, rank), other) for other in others]
            for other in reversed(others):
                assert torch.equal(receive(made[rank], 3_000_000, other), filled(3_000_000, other))
            for pending in sends:
                pending.wait()

        succeed(*(lambda rank=rank: swap(rank) for rank in range(3)))


@pytest.mark.parametrize("seed", range(3))
def test_any_program_that_matches_sends_and_receives_ends(lane: str, seed: int) -> None:
    """All ranks start the same messages, each in an order of its own, and wait for them in another."""
    generator = random.Random(seed)
    size, sizes = 4, (0, 16, 20_000, 200_000)
    plan = [(*generator.sample(range(size), 2), generator.randrange(3), generator.choice(sizes)) for _ in range(60)]

    def program(rank: int) -> None:
        order = random.Random(seed * 10 + rank)
        own = [(number, *message) for number, message in enumerate(plan) if rank in message[:2]]
        by_pair: dict[tuple[int, int, int], list[int]] = {}
        for number, source, target, tag, _ in own:
            by_pair.setdefault((source, target, tag), []).append(number)
        queues = {pair: list(numbers) for pair, numbers in by_pair.items()}
        started = []
        while queues:  # messages of one pair and tag keep their order, pairs mix
            pair = order.choice(sorted(queues))
            number = queues[pair].pop(0)
            if not queues[pair]:
                del queues[pair]
            source, target, tag, length = plan[number]
            tensor = filled(length, number) if rank == source else torch.zeros(length, dtype=torch.uint8)
            start = made[rank].send(tensor, target, tag) if rank == source else made[rank].receive(tensor, source, tag)
            started.append((number, start, tensor))
        order.shuffle(started)
        for number, pending, tensor in started:
            assert pending.wait(30.0), pending.label
            assert torch.equal(tensor, filled(plan[number][3], number)), pending.label

    with mailboxes(lane, size) as made:
        succeed(*(lambda rank=rank: program(rank) for rank in range(size)))


def test_short_messages_that_nobody_receives_yet_do_not_pile_up_at_the_receiver(lane: str) -> None:
    count, length = 800, 8000  # more than the window
    with mailboxes(lane, 2) as made:
        sends = [made[0].send(filled(length, number), 1) for number in range(count)]
        made[0].send(filled(1, 1), 1, tag=9)
        receive(made[1], 1, 0, tag=9)  # everything before it has arrived
        unfinished = sum(not pending.is_done for pending in sends)
        assert unfinished * length > count * length - mailbox_post.WINDOW_BYTES - length
        for number in range(count):
            assert torch.equal(receive(made[1], length, 0), filled(length, number))
        for pending in sends:
            pending.wait()


def test_two_threads_that_wait_at_once_both_get_theirs(lane: str) -> None:
    with mailboxes(lane, 2) as made:

        def send() -> None:
            for number in range(100):
                made[0].send(filled(8, number), 1, tag=number % 2).wait()

        def take(tag: int) -> None:
            for number in range(tag, 100, 2):
                assert torch.equal(receive(made[1], 8, 0, tag), filled(8, number))

        succeed(send, lambda: take(0), lambda: take(1))


def test_what_was_started_goes_on_while_nobody_waits(lane: str) -> None:
    with mailboxes(lane, 2) as made:
        tensor, done = torch.zeros(2_000_000, dtype=torch.uint8), threading.Event()
        pending = made[1].receive(tensor, 0)
        pending.when_done(done.set)
        sending = made[0].send(filled(2_000_000, 7), 1)
        assert done.wait(30.0)
        assert pending.is_done
        assert torch.equal(tensor, filled(2_000_000, 7))
        sent = threading.Event()
        sending.when_done(sent.set)
        assert sent.wait(30.0)


def test_who_is_called_back_may_send(lane: str) -> None:
    with mailboxes(lane, 2) as made:
        token, back = torch.zeros(4), torch.zeros(4)
        made[1].receive(token, 0).when_done(lambda: made[1].send(token + 1, 0))
        answer = made[0].receive(back, 1)
        made[0].send(torch.full((4,), 41.0), 1).wait()
        assert answer.wait(30.0)
        assert back.tolist() == [42.0] * 4


def test_a_wait_with_a_limit_says_that_the_time_was_over(lane: str) -> None:
    with mailboxes(lane, 2) as made:
        tensor = torch.zeros(3)
        pending = made[1].receive(tensor, 0)
        assert not pending.wait(0.01)
        assert not pending.is_done
        made[0].send(torch.ones(3), 1).wait()
        assert pending.wait(30.0)
        assert tensor.tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.bfloat16, torch.complex64, torch.float8_e5m2])
def test_every_type_and_every_layout_travels(lane: str, dtype: torch.dtype) -> None:
    with mailboxes(lane, 2) as made:
        values = torch.randint(0, 2, (40, 30)).to(dtype)
        target = torch.zeros(60, 40, dtype=torch.uint8).to(dtype)[::2].t()
        assert not target.is_contiguous()
        succeed(
            lambda: made[0].send(values.t(), 1).wait(),
            lambda: made[1].receive(target.t(), 0).wait(),
        )
        assert torch.equal(target.to(torch.complex64), values.to(torch.complex64))  # which holds any of them


def test_a_tensor_made_for_inference_is_received_outside_of_it(lane: str) -> None:
    with mailboxes(lane, 2) as made:
        with torch.inference_mode():
            target = torch.zeros(4, 6).t()
        pending = made[1].receive(target, 0)
        made[0].send(torch.ones(6, 4), 1).wait()
        pending.wait()
        assert target.sum() == 24


def test_a_tensor_that_needs_gradients_is_received_without_a_trace() -> None:
    with mailboxes("memory", 2) as made:
        leaf = torch.zeros(4, requires_grad=True)
        made[0].send(torch.ones(4), 1).wait()
        made[1].receive(leaf, 0).wait()
        assert leaf.tolist() == [1.0] * 4
        assert leaf.grad_fn is None
        assert leaf._version == 0


@pytest.mark.parametrize(("sent", "received"), [((8,), (9,)), ((300_000,), (200_000,))], ids=["short", "long"])
def test_different_sizes_are_named_and_the_mailbox_goes_on(lane: str, sent: tuple[int], received: tuple[int]) -> None:
    with mailboxes(lane, 2) as made:
        sending = made[0].send(torch.zeros(sent), 1, tag=4)
        (error,) = in_threads(made[1].receive(torch.zeros(received), 0, tag=4).wait)
        assert isinstance(error, WorkersDisagree)
        text = f"rank 0 sends {sent[0]} elements of float32 ({sent[0] * 4} bytes) with tag 4, and rank 1 receives"
        assert str(error).startswith(f"{text} {received[0]} elements of float32 ({received[0] * 4} bytes)")
        if sent[0] > 1000:
            with pytest.raises(WorkersDisagree, match="rank 1 receives"):
                sending.wait()
        made[0].send(torch.ones(3), 1, tag=4)
        tensor = torch.zeros(3)
        made[1].receive(tensor, 0, tag=4).wait()
        assert tensor.tolist() == [1.0, 1.0, 1.0]


def test_different_types_are_named(lane: str) -> None:
    with mailboxes(lane, 2) as made:
        made[0].send(torch.zeros(4, dtype=torch.int32), 1)
        with pytest.raises(WorkersDisagree, match=r"4 elements of int32 \(16 bytes\).* 4 elements of float32"):
            made[1].receive(torch.zeros(4), 0).wait()


def test_calls_that_cannot_work_are_refused() -> None:
    with mailboxes("memory", 2) as made:
        for peer in (-1, 0, 2):
            with pytest.raises(UsageError, match=texts.no_such_peer("send to", peer, rank=0, size=2)):
                made[0].send(torch.zeros(1), peer)
        with pytest.raises(UsageError, match="more than 64 bits"):
            made[0].receive(torch.zeros(1), 1, tag=2**63)
        with pytest.raises(UsageError, match="more than 64 bits"):
            made[0].receive(torch.zeros(1), None, tag=2**63)
        with pytest.raises(UsageError, match="only dense tensors"):
            made[0].send(torch.zeros(2, 2).to_sparse(), 1)

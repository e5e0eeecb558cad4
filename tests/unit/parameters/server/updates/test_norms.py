"""Servers agree on one norm, whatever dies in between, and nobody waits for ever."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from shoal.parameters.server.updates.norms import NormExchange, TellServers


class Group:
    """Servers with an unordered network between them; each has a part of update 7."""

    def __init__(self, seed: int, size: int) -> None:
        self.random = random.Random(seed)
        self.view = 1
        self.all = tuple(range(size))
        self.living = list(self.all)
        self.exchanges = {server: NormExchange(server) for server in self.all}
        self.known = dict.fromkeys(self.all, 1)  # view that each has heard of
        self.mail: list[tuple[int, int, TellServers]] = []  # from, to, what
        for exchange in self.exchanges.values():
            exchange.new_view(1, self.all)

    def post(self, sender: int, told: list[TellServers]) -> None:
        self.mail += [(sender, server, each) for each in told for server in each.servers]

    def work(self, server: int) -> None:
        exchange = self.exchanges[server]
        if exchange.total(7) is None and exchange.needs_part(7):
            self.post(server, exchange.offer(7, (server + 0.1, 1.0), self.all))

    def deliver(self) -> None:
        sender, receiver, told = self.mail.pop(self.random.randrange(len(self.mail)))
        if receiver not in self.living or sender not in self.living:
            return  # connections of the dead are gone
        exchange = self.exchanges[receiver]
        if told.is_total:
            self.post(receiver, exchange.heard_total(told.view, told.number, told.squares))
        else:
            self.post(receiver, exchange.heard_part(sender, told.view, told.number, told.squares))

    def kill(self, server: int) -> None:
        self.living.remove(server)
        self.view += 1

    def hear_of_map(self, server: int) -> None:
        if self.known[server] < self.view:
            self.known[server] = self.view
            self.exchanges[server].new_view(self.view, self.living)

    def step(self) -> None:
        server = self.random.choice(self.living)
        [self.work, self.hear_of_map][self.random.randrange(2)](server)
        if self.mail and self.random.random() < 0.7:
            self.deliver()

    def finish(self) -> None:
        for server in self.living:
            self.hear_of_map(server)
        for server in self.living:
            self.work(server)
        while self.mail:
            self.deliver()
            for server in self.living:
                self.work(server)


@given(st.integers(0, 10**9), st.integers(1, 5), st.lists(st.integers(0, 40), max_size=3))
def test_all_survivors_get_the_same_sum_of_somebodys_view(seed: int, size: int, deaths: list[int]) -> None:
    group = Group(seed, size)
    for turn in range(40):
        if turn in deaths and len(group.living) > 1:
            group.kill(group.random.choice(group.living))
        group.step()
    group.finish()
    totals = {group.exchanges[server].total(7) for server in group.living}
    assert len(totals) == 1
    (total,) = totals
    assert total is not None
    assert 1.0 <= total[1] <= size  # of those who lived when it was made
    if not deaths:
        assert total[1] == size


def test_parts_are_added_in_the_order_of_servers_whatever_order_they_come_in() -> None:
    sums = set()
    for order in ([1, 2], [2, 1]):
        home = NormExchange(0)
        home.new_view(1, (0, 1, 2))
        home.offer(7, (1e16,), (0, 1, 2))
        for server in order:
            home.heard_part(server, 1, 7, (1.0 if server == 1 else -1e16,))
        sums.add(home.total(7))
    assert len(sums) == 1


def test_a_repeated_question_is_answered_with_the_sum() -> None:
    home = NormExchange(0)
    home.new_view(1, (0, 1))
    home.offer(7, (1.0,), (0, 1))
    (told,) = home.heard_part(1, 1, 7, (2.0,))
    assert (told.servers, told.squares, told.is_total) == ((1,), (3.0,), True)
    (again,) = home.heard_part(1, 2, 7, (5.0,))
    assert (again.squares, again.view, again.is_total) == ((3.0,), 2, True)


def test_who_asks_in_a_view_that_home_does_not_know_yet_is_answered_when_home_has_the_sum() -> None:
    home = NormExchange(0)
    home.new_view(1, (0, 1, 2))
    home.offer(7, (1.0,), (0, 1, 2))
    home.heard_part(1, 1, 7, (2.0,))
    assert home.heard_part(1, 2, 7, (2.0,)) == []  # server 1 knows of a newer map
    told = home.heard_part(2, 1, 7, (4.0,))
    assert [(each.servers, each.view) for each in told] == [((1, 2), 1), ((1,), 2)]

"""Ordering entries: who is sent what, and when a worker may hear an answer."""

from __future__ import annotations

import pytest

from shoal.parameters.ledger.effects import Begun
from shoal.parameters.ledger.sequencer import (
    NONE,
    Installed,
    Instruction,
    Redirect,
    SendToServer,
    SendToWorker,
    Sequencer,
)
from shoal.values import Address, Server, ServerMap
from shoal.wire.ledger_entries import Begin, Enrol, ProposalDone
from shoal.wire.parameter_messages import EntryRecord, LedgerCopy, Recorded, ViewState


def server_map(version: int, *numbers: int, replicas: int = 2, after: tuple[int, ...] = ()) -> ServerMap:
    servers = tuple(Server(number, Address("host", 1), "host", number) for number in numbers)
    return ServerMap(version, servers, numbers, after or numbers, replicas)


def enrol(request: int, worker: int = 0) -> Enrol:
    return Enrol(worker=worker, request=request, generation=request, workers=(worker,), mode="asynchronous")


class Servers:
    """Sequencers whose messages go at once; those to servers in `cut` are lost."""

    def __init__(self, *numbers: int, replicas: int = 2) -> None:
        self.all = {number: Sequencer("job", number) for number in numbers}
        self.cut: set[int] = set()
        self.answers: list[SendToWorker] = []
        self.sent: list[tuple[int, SendToServer]] = []
        self.rest: list[tuple[int, Instruction]] = []
        self.publish(server_map(1, *numbers, replicas=replicas))

    def publish(self, map_: ServerMap, *deaf: int) -> None:
        for number, sequencer in self.all.items():
            if number not in deaf:
                self.do(number, sequencer.new_map(map_))

    def do(self, number: int, instructions: list[Instruction]) -> None:
        for each in instructions:
            if isinstance(each, SendToServer):
                self.sent.append((number, each))
                if not self.cut & {number, each.server}:
                    self.do(each.server, self.all[each.server].heard(number, each.note, each.payload))
            elif isinstance(each, SendToWorker):
                self.answers.append(each)
            else:
                self.rest.append((number, each))

    def propose(self, number: int, request: int, view: int = 1) -> None:
        self.do(number, self.all[number].proposed(enrol(request), view))

    def start(self, number: int) -> None:
        self.all[number] = Sequencer("job", number)

    @property
    def numbers(self) -> dict[int, int]:
        return {number: sequencer.number for number, sequencer in self.all.items()}


def test_home_begins_the_view_when_all_have_spoken_and_orders_what_workers_propose() -> None:
    servers = Servers(0, 1, 2)
    assert servers.numbers == {0: 1, 1: 1, 2: 1}
    assert {number for number, each in servers.rest if each == Begun(1, 1)} == {0, 1, 2}
    servers.propose(0, 1)
    servers.propose(0, 2)
    assert servers.numbers == {0: 3, 1: 3, 2: 3}
    assert servers.all[0].ledger == servers.all[1].ledger == servers.all[2].ledger
    assert [answer.answer.request for answer in servers.answers] == [1, 2]


def test_a_worker_hears_nothing_before_as_many_servers_have_the_entry_as_replicas_are_to_survive() -> None:
    home = Sequencer("job", 0)
    home.new_map(server_map(1, 0, 1, 2, replicas=3))
    for server in (1, 2):
        out = home.heard(server, ViewState(job="job", view=1, number=NONE, entries=()))
    assert home.is_begun
    copies = [each for each in out if isinstance(each, SendToServer) and isinstance(each.note, LedgerCopy)]
    assert {each.server for each in copies} == {1, 2}
    out = home.proposed(enrol(1), 1)
    assert not [each for each in out if isinstance(each, SendToWorker)]
    assert not home.heard(1, Recorded(job="job", view=1, number=2)), "two others must have it"
    (answer,) = home.heard(2, Recorded(job="job", view=1, number=2))
    assert isinstance(answer, SendToWorker)
    assert isinstance(answer.answer, ProposalDone)
    (again,) = home.proposed(enrol(1), 1)
    assert again == answer, "who asks again gets the same answer"
    assert home.number == 2


def test_a_single_server_answers_at_once() -> None:
    servers = Servers(0)
    servers.propose(0, 1)
    assert len(servers.answers) == 1


def test_what_one_follower_has_survives_home_and_is_answered_by_the_next() -> None:
    servers = Servers(0, 1, 2)
    servers.cut = {1}
    servers.propose(0, 1)
    assert servers.numbers == {0: 2, 1: 1, 2: 2}
    del servers.all[0]
    servers.cut = set()
    servers.publish(server_map(2, 1, 2))
    assert servers.numbers == {1: 3, 2: 3}
    assert servers.all[1].ledger == servers.all[2].ledger
    heard = len(servers.answers)
    servers.propose(1, 1, view=2)
    assert servers.numbers == {1: 3, 2: 3}, "a request that is in the ledger is not entered again"
    assert servers.answers[-1] == servers.answers[0]
    assert len(servers.answers) == heard + 1


def test_what_nobody_else_has_goes_with_home_and_is_entered_anew() -> None:
    servers = Servers(0, 1, 2)
    servers.cut = {0}
    servers.propose(0, 1)
    assert servers.answers == []
    del servers.all[0]
    servers.cut = set()
    servers.publish(server_map(2, 1, 2))
    servers.propose(1, 1, view=2)
    assert servers.numbers == {1: 3, 2: 3}
    assert len(servers.answers) == 1


def test_a_new_server_gets_a_copy_and_with_it_the_entries_that_others_may_lack() -> None:
    servers = Servers(0, 1)
    servers.propose(0, 1)
    servers.start(2)
    servers.publish(server_map(2, 0, 1, 2))
    assert (2, Installed(2, had_one=False)) in servers.rest
    assert servers.all[2].ledger == servers.all[0].ledger
    servers.cut = {1}
    servers.propose(0, 2, view=2)
    servers.start(3)
    servers.cut = set()
    servers.publish(server_map(3, 0, 1, 2, 3))
    servers.cut = {1}
    servers.propose(0, 3, view=3)
    del servers.all[0], servers.all[2]
    servers.cut = set()
    servers.publish(server_map(4, 1, 3))
    assert servers.all[1].ledger == servers.all[3].ledger
    assert servers.all[1].ledger is not None
    assert servers.all[1].ledger.has_seen(0, 3)


def test_a_home_without_a_ledger_takes_it_from_another() -> None:
    servers = Servers(4, 6)
    servers.propose(4, 1)
    del servers.all[4]
    servers.start(5)
    servers.publish(server_map(2, 5, 6))
    home = servers.all[5]
    assert home.is_begun
    assert (5, Installed(2, had_one=False)) in servers.rest
    assert home.ledger == servers.all[6].ledger
    assert home.ledger is not None
    assert home.ledger.has_seen(0, 1)


def test_a_broken_connection_is_made_good_when_it_is_there_again() -> None:
    servers = Servers(0, 1)
    servers.cut = {1}
    servers.propose(0, 1)
    servers.propose(0, 2)
    assert servers.numbers == {0: 3, 1: 1}
    assert servers.answers == []
    servers.cut = set()
    servers.do(0, servers.all[0].connected(1))
    servers.do(1, servers.all[1].connected(0))
    assert servers.numbers == {0: 3, 1: 3}
    assert [answer.answer.request for answer in servers.answers] == [2]


def test_messages_of_newer_views_wait_for_the_map_and_those_of_older_ones_are_dropped() -> None:
    servers = Servers(0, 1)
    servers.start(2)
    servers.publish(server_map(2, 0, 1, 2), 0)
    assert servers.numbers[0] == 1
    servers.do(0, servers.all[0].new_map(server_map(2, 0, 1, 2)))
    assert servers.numbers == {0: 2, 1: 2, 2: 2}
    stale = EntryRecord(job="job", view=1, number=3, entry=Begin(view=9), stable=0)
    assert servers.all[1].heard(0, stale) == []
    assert servers.numbers[1] == 2
    stranger = EntryRecord(job="job", view=2, number=3, entry=Begin(view=9), stable=0)
    assert servers.all[1].heard(2, stranger) == [], "only home records"


def test_what_a_server_hears_before_it_is_in_the_map_is_kept() -> None:
    home = Sequencer("job", 3)
    assert home.heard(4, ViewState(job="job", view=2, number=NONE, entries=())) == []
    assert home.new_map(server_map(1, 0, 1)) == []
    home.new_map(server_map(2, 3, 4))
    assert home.is_begun


def test_proposals_wait_for_the_view_and_go_to_home_alone() -> None:
    home = Sequencer("job", 0)
    assert home.proposed(enrol(1), 1) == [], "there is no map yet"
    home.new_map(server_map(1, 0, 1))
    out = home.heard(1, ViewState(job="job", view=1, number=NONE, entries=()))
    assert home.number == 2, "the view has begun, and what was proposed is entered"
    assert any(isinstance(each, SendToServer) for each in out)
    servers = Servers(0, 1)
    servers.propose(1, 1)
    assert (1, Redirect(0, 1)) in servers.rest
    assert servers.all[0].proposed(Begin(view=7), 1) == [], "that is no worker's to propose"


def test_a_server_that_is_out_of_the_map_says_nothing_any_more() -> None:
    servers = Servers(0, 1, 2)
    out = servers.all[0]
    assert out.new_map(server_map(2, 1, 2)) == []
    assert out.connected(1) == []
    assert out.heard(1, Recorded(job="job", view=2, number=1)) == []
    assert out.proposed(enrol(1), 2) == [Redirect(0, 1)]


def test_entries_that_all_have_are_forgotten() -> None:
    servers = Servers(0, 1)
    for request in range(1, 20):
        servers.propose(0, request)
    servers.sent = []
    servers.publish(server_map(2, 0, 1))
    states = [send.note for _, send in servers.sent if isinstance(send.note, ViewState)]
    assert [len(state.entries) for state in states] == [1], "home's word that all have the last one is still to come"


@pytest.mark.parametrize(
    ("after", "enough"), [((1, 3), {1, 3}), ((0, 1, 3), {1}), ((3,), {3}), ((1, 2, 3), {1, 2}), ((0, 1, 2, 3), {2})]
)
def test_servers_that_are_leaving_do_not_vouch_for_an_entry(after: tuple[int, ...], enough: set[int]) -> None:
    """They may all go with the next map, and what only they have with them."""
    servers = Servers(0, 1, 2, 3)
    servers.publish(server_map(2, 0, 1, 2, 3, after=after))
    servers.cut = {1, 2, 3}
    servers.propose(0, 1, view=2)
    home = servers.all[0]
    recorded = Recorded(job="job", view=2, number=home.number)
    leaving = [server for server in (1, 2, 3) if server not in after]
    assert [home.heard(server, recorded) for server in leaving] == [[] for _ in leaving]
    heard = [each for server in sorted(enough) for each in home.heard(server, recorded)]
    assert [type(each) for each in heard] == [SendToWorker]


def test_a_new_server_whose_copy_was_lost_begins_the_view_with_the_next() -> None:
    servers = Servers(0, 1)
    servers.propose(0, 1)
    servers.start(2)
    publish = server_map(2, 0, 1, 2)
    servers.do(1, servers.all[1].new_map(publish))
    servers.do(0, servers.all[0].new_map(publish))
    servers.cut = {2}
    servers.all[2].new_map(publish)
    servers.do(0, servers.all[0].heard(2, ViewState(job="job", view=2, number=NONE, entries=())))
    assert servers.all[0].is_begun
    assert servers.all[2].ledger is None, "what home sent is lost with the connection"
    servers.cut = set()
    servers.do(2, servers.all[2].connected(0))
    assert servers.all[2].ledger == servers.all[0].ledger
    assert [each for number, each in servers.rest if number == 2] == [Installed(3, had_one=False), Begun(3, 2)]

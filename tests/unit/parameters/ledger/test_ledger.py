"""The rules of a job's ledger, one by one."""

from __future__ import annotations

import msgspec

from shoal.parameters.ledger.effects import Begun, Drop, Effect, MayRead, Replace, Reply, Update
from shoal.parameters.ledger.ledger import Ledger
from shoal.wire.ledger_entries import (
    AnyAnswer,
    AnyEntry,
    Ask,
    Assign,
    Begin,
    Call,
    Committed,
    Enrol,
    Granted,
    Lease,
    OpenLoop,
    ProposalDone,
    Push,
    Told,
    Void,
    Withdraw,
)
from shoal.wire.tables import LoopTerms, PushId, PushTerms, Range

SGD = (({"lr": 0.1},),)


class Job:
    """A ledger and the requests of its workers, numbered."""

    def __init__(self, workers: tuple[int, ...] = (0, 1), mode: str = "asynchronous", **terms: object) -> None:
        self.ledger = Ledger()
        self.requests: dict[int, int] = {}
        self.effects: list[Effect] = []
        self.add(Begin(view=1))
        self.enrol(1, workers, mode, **terms)

    def add(self, entry: AnyEntry) -> list[Effect]:
        if not isinstance(entry, Begin):
            self.requests[entry.worker] = max(self.requests.get(entry.worker, 0), entry.request)
        self.effects = self.ledger.apply(self.ledger.number + 1, entry)
        copy = msgspec.msgpack.decode(msgspec.msgpack.encode(self.ledger), type=Ledger)
        assert copy == self.ledger, "a copy of the ledger is the ledger"
        self.ledger = copy
        return self.effects

    def request(self, worker: int) -> int:
        self.requests[worker] = self.requests.get(worker, 0) + 1
        return self.requests[worker]

    def enrol(self, generation: int, workers: tuple[int, ...], mode: str = "asynchronous", **terms: object) -> None:
        for worker in workers:
            said = {"generation": generation, "workers": workers, "mode": mode, **terms}
            self.add(
                msgspec.convert({"entry": "enrol", "worker": worker, "request": self.request(worker), **said}, Enrol)
            )

    def plan(self, samples: int = 100, update: int = 10, loop: int = 1, worker: int = 0) -> AnyAnswer | None:
        terms = LoopTerms(loop=loop, first_epoch=0, epochs=1, samples=samples, update=update)
        generation = self.ledger.generation
        self.add(OpenLoop(worker=worker, request=self.request(worker), generation=generation, terms=terms))
        return self.answer(worker)

    def lease(self, worker: int, meetings: int = 0, holds: tuple[Range, ...] = (), loop: int = 1) -> AnyAnswer | None:
        said = {"worker": worker, "request": self.request(worker), "generation": self.ledger.generation}
        self.add(Lease(**said, updates=1, loop=loop, meetings=meetings, holds=holds))
        return self.answer(worker)

    def push(self, worker: int, used: tuple[Range, ...] = (), **terms: object) -> AnyAnswer | None:
        request = self.request(worker)
        values = {"generation": self.ledger.generation, "view": self.ledger.view, "step": 0, "read": 0, "groups": SGD}
        values |= terms
        self.add(
            Push(
                worker=worker,
                request=request,
                generation=values["generation"],
                view=values["view"],
                push=PushId(worker, request),
                terms=PushTerms(groups=values["groups"], scale=0.5, read=values["read"]),
                step=values["step"],
                used=used,
            )
        )
        return self.answer(worker)

    def answer(self, worker: int) -> AnyAnswer | None:
        """To the worker's newest request; None while it waits."""
        return self.ledger.answer_to(worker, self.requests[worker])

    def of(self, kind: type) -> list[Effect]:
        return [effect for effect in self.effects if isinstance(effect, kind)]


def test_an_asynchronous_push_is_applied_at_once_and_uses_up_its_lease() -> None:
    job = Job()
    job.plan()
    granted = job.lease(0)
    assert isinstance(granted, Granted)
    assert granted.lease == Range(0, 0, 10)
    job.push(1)
    answer = job.push(0, used=(granted.lease,))
    assert isinstance(answer, Committed)
    assert (answer.staleness, answer.factor, answer.updates) == (1, 0.5, 2)
    (update,) = job.of(Update)
    assert isinstance(update, Update)
    assert (update.pushes, update.scales, update.lr_factor) == ((PushId(0, 4),), (0.5,), 0.5)
    assert job.ledger.histogram == [1, 1]
    again = job.push(0, used=(granted.lease,))
    assert isinstance(again, Void)
    assert job.of(Drop) == [Drop((PushId(0, 5),))]
    assert job.ledger.updates == 2


def test_staleness_scales_the_gradient_or_nothing_where_that_is_asked_for() -> None:
    for scaling, scale, factor in (("gradient", 0.25, 1.0), ("none", 0.5, 1.0)):
        job = Job(scaling=scaling)
        job.push(1)
        job.push(0)
        (update,) = job.of(Update)
        assert isinstance(update, Update)
        assert (update.scales, update.lr_factor) == ((scale,), factor)


def test_a_repeated_request_gets_the_same_answer_and_changes_nothing() -> None:
    job = Job()
    entry = Push(worker=0, request=9, generation=1, view=1, push=PushId(0, 9), terms=PushTerms(groups=SGD))
    job.add(entry)
    first = job.ledger.answer_to(0, 9)
    assert isinstance(first, Committed)
    job.add(entry)
    assert job.effects == []
    assert job.ledger.answer_to(0, 9) == first
    assert job.ledger.updates == 1
    assert job.ledger.has_seen(0, 9)
    assert not job.ledger.has_seen(0, 10)


def test_what_comes_from_an_older_generation_or_a_stranger_is_void() -> None:
    job = Job()
    job.plan()
    job.lease(0)
    job.enrol(2, (1, 2))
    late = job.push(1, generation=1)
    assert isinstance(late, Void)
    assert not late.restage
    stranger = job.push(0, used=(Range(0, 0, 10),))
    assert isinstance(stranger, Void)
    old = Enrol(worker=0, request=20, generation=1, workers=(0, 1), mode="asynchronous")
    job.add(old)
    assert isinstance(job.ledger.answer_to(0, 20), Void)
    granted = job.lease(2)
    assert isinstance(granted, Granted)
    assert granted.lease == Range(0, 0, 10), "what a lost worker had leased is free again"


def test_members_must_say_the_same_terms() -> None:
    job = Job()
    job.add(Enrol(worker=1, request=9, generation=1, workers=(0, 1), mode="synchronous"))
    assert isinstance(job.ledger.answer_to(1, 9), Void)
    job.plan(samples=100)
    assert isinstance(job.plan(samples=100, worker=1), ProposalDone)
    assert isinstance(job.plan(samples=90, worker=1), Void)
    assert isinstance(job.plan(update=0, loop=2), Void), "no such loop"


def test_a_push_that_was_staged_under_another_map_is_to_be_staged_again() -> None:
    job = Job()
    job.add(Begin(view=2))
    assert job.effects == [Begun(number=job.ledger.number, view=2)]
    answer = job.push(0, view=1)
    assert isinstance(answer, Void)
    assert answer.restage
    job.add(Assign(worker=0, request=30, generation=1, view=1, push=PushId(0, 30), updates=0))
    assigned = job.ledger.answer_to(0, 30)
    assert isinstance(assigned, Void)
    assert assigned.restage
    assert not job.ledger.has_values


def test_first_values_are_assigned_and_stand_for_so_many_updates() -> None:
    job = Job()
    job.add(Assign(worker=0, request=30, generation=1, view=1, push=PushId(0, 30), updates=70))
    assert job.of(Replace) == [Replace(job.ledger.number, PushId(0, 30), 70)]
    assert job.ledger.has_values
    answer = job.ledger.answer_to(0, 30)
    assert isinstance(answer, ProposalDone)
    assert answer.updates == 70


def test_new_values_end_the_loop_that_belonged_to_the_old_ones() -> None:
    job = Job()
    job.plan(samples=10)
    job.lease(0)
    assert job.lease(1) is None
    job.add(Assign(worker=0, request=30, generation=1, view=1, push=PushId(0, 30), updates=70))
    waited = job.answer(1)
    assert isinstance(waited, Granted)
    assert (waited.lease, waited.is_over) == (None, False)
    assert isinstance(job.push(0, used=(Range(0, 0, 10),)), Void)
    assert isinstance(job.lease(1), Void), "it is to be planned anew"
    job.plan(samples=20)
    again = job.lease(1)
    assert isinstance(again, Granted)
    assert again.lease == Range(0, 0, 10)


def test_a_synchronous_step_waits_for_all_members_and_is_one_update_in_their_order() -> None:
    job = Job((3, 1, 2), mode="synchronous")
    assert job.push(1, step=5) is None
    assert job.push(2, step=5) is None
    assert job.effects == []
    job.push(3, step=5)
    (update,) = job.of(Update)
    assert isinstance(update, Update)
    assert [push.worker for push in update.pushes] == [3, 1, 2]
    assert (update.lr_factor, update.updates) == (1.0, 1)
    assert {reply.worker for reply in job.of(Reply) if isinstance(reply, Reply)} == {1, 2, 3}
    assert all(isinstance(job.answer(worker), Committed) for worker in (1, 2, 3))
    assert isinstance(job.push(1, step=5), Void), "a step is applied once"


def test_pushes_without_groups_count_and_their_gradients_do_not() -> None:
    job = Job(mode="synchronous")
    job.push(0, step=1, groups=())
    job.push(1, step=1)
    (update,) = job.of(Update)
    assert isinstance(update, Update)
    assert [push.worker for push in update.pushes] == [1]
    assert job.of(Drop) == [Drop((PushId(0, 2),))]
    job.push(0, step=2, groups=())
    job.push(1, step=2, groups=())
    (empty,) = job.of(Update)
    assert isinstance(empty, Update)
    assert (empty.pushes, empty.updates, empty.clip_norms) == ((), 2, ())


def test_an_optimizer_without_values_takes_no_step() -> None:
    job = Job(mode="synchronous")
    job.push(0, step=1, groups=((), ({"lr": 0.2},)))
    job.push(1, step=1, groups=(({"lr": 0.1},), ({"lr": 0.3},)))
    (update,) = job.of(Update)
    assert isinstance(update, Update)
    assert (update.groups(0), update.summands(0)) == (({"lr": 0.1},), (1,))
    assert (update.groups(1), update.summands(1)) == (({"lr": 0.2},), (0, 1))
    assert (update.groups(2), update.summands(2)) == ((), ())


def test_a_withdrawn_step_is_never_applied_and_an_applied_one_stays() -> None:
    job = Job(mode="synchronous")
    job.push(0, step=1)
    job.push(1, step=1)
    job.push(0, step=2)
    job.add(Withdraw(worker=1, request=20, generation=1, step=2))
    assert isinstance(job.ledger.answer_to(1, 20), Void)
    assert isinstance(job.answer(0), Void), "the other's push is void too"
    assert job.of(Drop) == [Drop((PushId(0, 3),))]
    assert isinstance(job.push(1, step=2), Void)
    job.add(Withdraw(worker=0, request=20, generation=1, step=1))
    assert isinstance(job.ledger.answer_to(0, 20), Committed)
    job.enrol(2, (0, 1), mode="synchronous")
    job.push(0, step=2)
    assert isinstance(job.push(1, step=2), Committed), "another generation does it anew"
    job.add(Withdraw(worker=1, request=40, generation=1, step=2))
    assert isinstance(job.ledger.answer_to(1, 40), Void), "that of the first generation was not applied"


def test_a_new_generation_and_a_new_map_void_open_synchronous_pushes() -> None:
    job = Job(mode="synchronous")
    job.push(0, step=1)
    job.add(Begin(view=2))
    answer = job.answer(0)
    assert isinstance(answer, Void)
    assert answer.restage
    assert job.push(0, step=1) is None
    waiting = PushId(0, job.requests[0])
    job.add(Enrol(worker=1, request=9, generation=2, workers=(1, 2), mode="synchronous"))
    answer = job.answer(0)
    assert isinstance(answer, Void)
    assert not answer.restage
    assert job.of(Drop) == [Drop((waiting,))]


def test_a_lease_waits_while_others_may_still_give_theirs_back() -> None:
    job = Job()
    job.plan(samples=20)
    job.lease(0)
    second = job.lease(1)
    assert isinstance(second, Granted)
    assert second.lease == Range(0, 10, 20)
    job.push(1, used=(second.lease,))
    assert job.lease(1) is None
    job.push(0, used=(Range(0, 0, 10),))
    last = job.answer(1)
    assert isinstance(last, Granted)
    assert (last.lease, last.is_over) == (None, True)


def test_a_worker_that_asks_again_gives_back_what_it_does_not_name() -> None:
    job = Job()
    job.plan(samples=20)
    job.lease(0)
    assert isinstance(job.lease(1), Granted)
    held = job.lease(1, holds=(Range(0, 10, 20),))
    assert isinstance(held, Granted)
    assert (held.lease, held.is_over) == (None, False), "who holds positions does not wait for more"
    again = job.lease(0)
    assert isinstance(again, Granted)
    assert again.lease == Range(0, 0, 10)


def test_a_lease_of_a_past_loop_hears_that_it_is_over_and_of_one_to_come_is_void() -> None:
    job = Job()
    job.plan(samples=10)
    job.lease(0)
    assert job.lease(1) is None
    job.plan(samples=50, loop=2)
    waited = job.answer(1)
    assert isinstance(waited, Granted)
    assert waited.is_over
    past = job.lease(1, loop=1)
    assert isinstance(past, Granted)
    assert past.is_over
    assert isinstance(job.lease(1, loop=3), Void)
    assert isinstance(job.plan(samples=10, loop=1), ProposalDone), "a worker that comes late plans what is past"
    assert job.ledger.leases is not None
    assert job.ledger.leases.terms.loop == 2


def test_a_call_releases_who_waits_and_one_meeting_serves_all_that_call_meanwhile() -> None:
    job = Job((0, 1, 2), staleness=0)
    job.plan(samples=20)
    job.lease(0)
    job.lease(1)
    assert job.lease(2) is None
    job.push(0, used=(Range(0, 0, 10),))
    assert job.ledger.may_read(0, meetings=0) is MayRead.WAIT
    assert job.ledger.may_read(1, meetings=0) is MayRead.NOW
    job.add(Call(worker=0, request=10, generation=1, reason="save"))
    released = job.answer(2)
    assert isinstance(released, Granted)
    assert (released.lease, released.is_over, released.meetings, released.calling) == (None, False, 1, "save")
    assert job.ledger.may_read(0, meetings=0) is MayRead.MEET
    assert job.ledger.may_read(0, meetings=1) is MayRead.WAIT, "it comes from the meeting"
    job.add(Call(worker=1, request=10, generation=1, reason="stop"))
    assert job.ledger.meetings == 1
    assert job.lease(2, meetings=1) is None
    job.add(Call(worker=1, request=11, generation=1, reason="stop", meetings=1))
    assert (job.ledger.meetings, job.ledger.calling) == (2, "stop")


def test_who_enrols_has_attended_what_was_called_before_its_generation_and_no_more() -> None:
    job = Job()
    job.add(Call(worker=0, request=10, generation=1, reason="save"))
    job.add(Enrol(worker=0, request=11, generation=2, workers=(0, 1), mode="asynchronous"))
    job.add(Call(worker=0, request=12, generation=2, reason="stop", meetings=1))
    job.add(Enrol(worker=1, request=11, generation=2, workers=(0, 1), mode="asynchronous"))
    answer = job.ledger.answer_to(1, 11)
    assert isinstance(answer, ProposalDone)
    assert answer.meetings == 1
    assert job.ledger.meetings == 2


def test_a_newer_request_ends_the_waiting_of_an_older_one() -> None:
    job = Job()
    job.plan(samples=10)
    job.lease(0)
    assert job.lease(1) is None
    job.push(1)
    again = job.lease(0)
    assert [reply.worker for reply in job.of(Reply) if isinstance(reply, Reply)] == [0]
    assert isinstance(again, Granted)
    assert again.lease == Range(0, 0, 10), "who waits no more is given nothing"


def test_a_new_generation_ends_the_waiting_for_leases() -> None:
    job = Job()
    job.plan(samples=10)
    job.lease(0)
    assert job.lease(1) is None
    job.add(Enrol(worker=0, request=9, generation=2, workers=(0, 2), mode="asynchronous"))
    assert isinstance(job.answer(1), Void)
    assert job.ledger.waiting == []


def test_a_worker_can_ask_where_the_loop_is() -> None:
    job = Job()
    job.add(Ask(worker=0, request=8))
    nothing = job.ledger.answer_to(0, 8)
    assert isinstance(nothing, Told)
    assert nothing.loop == 0
    job.plan()
    job.lease(0)
    job.lease(1)
    job.push(1, used=(Range(0, 10, 20),))
    job.add(Ask(worker=1, request=8))
    told = job.ledger.answer_to(1, 8)
    assert isinstance(told, Told)
    assert (told.loop, told.epoch, told.position, told.is_over) == (1, 0, 20, False)
    assert told.open == (Range(0, 0, 10),)

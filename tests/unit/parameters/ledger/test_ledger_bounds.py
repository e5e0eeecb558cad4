"""A ledger that is given anything within bounds: it never raises, all copies agree, and what it says can be sent."""

from __future__ import annotations

import random
import typing

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as some

from shoal.errors import WireError
from shoal.parameters.ledger.effects import LedgerEnded, Reply
from shoal.parameters.ledger.ledger import Ledger
from shoal.parameters.ledger.proposals import MOST_PIECES, objection
from shoal.wire.ledger_entries import (
    AnyEntry,
    Ask,
    Begin,
    Call,
    Enrol,
    Lease,
    OpenLoop,
    Push,
    Void,
)
from shoal.wire.note_frames import HEAD_BYTES, decode_body, encode_note
from shoal.wire.parameter_messages import Answered, EntryRecord, Propose
from shoal.wire.tables import LoopTerms, PushId, PushTerms, Range
from support.random_messages import RandomValues

KINDS = typing.get_args(AnyEntry)
KNOWN = {
    "worker": [0, 1],
    "workers": [(0, 1), (0,)],
    "generation": [1, 2],
    "view": [1],
    "loop": [1, 2],
    "update": [1, 3],
}
KNOWN |= {
    "mode": ["synchronous", "asynchronous"],
    "scaling": ["lr", "gradient", "none"],
    "samples": [10],
    "step": [1, 2],
}


def entries(rng: random.Random, count: int) -> list[AnyEntry]:
    """Requests count up, or nothing would be decided."""
    found = [RandomValues(rng, KNOWN).of(rng.choice(KINDS)) for _ in range(count)]
    return [
        entry if isinstance(entry, Begin) else msgspec.structs.replace(entry, request=number)
        for number, entry in enumerate(found, start=1)
    ]


@given(some.integers(0, 2**32))
def test_nothing_within_bounds_raises_and_copies_agree(seed: int) -> None:
    one, other = Ledger(), Ledger()
    for number, entry in enumerate(entries(random.Random(seed), 40), start=1):
        effects = one.apply(number, entry)
        assert effects == other.apply(number, entry)
        assert not one.ended
        for effect in effects:
            if isinstance(effect, Reply):
                note = encode_note(Answered(answer=effect.answer))
                assert decode_body(note[HEAD_BYTES:]) == Answered(answer=effect.answer)
        other = msgspec.msgpack.decode(msgspec.msgpack.encode(other), type=Ledger)
        assert one == other


@pytest.mark.parametrize("name", ["first_epoch", "epochs", "samples", "update", "loop", "used_before"])
@pytest.mark.parametrize("value", [2**64 - 2, 2**63, -1])
def test_numbers_beyond_bounds_never_get_to_a_ledger(name: str, value: int) -> None:
    usual = {"loop": 1, "first_epoch": 0, "epochs": 1, "samples": 10, "update": 1}
    terms = LoopTerms(**{**usual, name: value})
    plan = OpenLoop(worker=0, request=1, generation=1, terms=terms)
    for note in (Propose(view=1, entry=plan), EntryRecord(job="job", view=1, number=1, entry=plan, stable=0)):
        with pytest.raises(WireError, match=name):
            decode_body(encode_note(note)[HEAD_BYTES:])


def begun(workers: tuple[int, ...] = (0,)) -> Ledger:
    ledger = Ledger()
    ledger.apply(1, Begin(view=1))
    ledger.apply(2, Enrol(worker=0, request=1, generation=1, workers=workers, mode="asynchronous"))
    return ledger


def planned(**terms: object) -> OpenLoop:
    usual = {"loop": 1, "first_epoch": 0, "epochs": 1, "samples": 10, "update": 1}
    return OpenLoop(
        worker=0,
        request=2,
        generation=1,
        terms=LoopTerms(**{**usual, **terms}),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        (planned(update=0), "1 or more are needed"),
        (planned(first_epoch=2**48, epochs=2), "would end after epoch"),
        (planned(epochs=2**40, done=(Range(2**39, 0, 1),)), "nothing is said of most epochs"),
        (Enrol(worker=0, request=2, generation=2, workers=(0, 1, 0), mode="synchronous"), "a worker twice"),
        (
            Lease(worker=0, request=2, generation=1, updates=1, holds=(Range(0, 0, 1),) * (MOST_PIECES + 1)),
            "ranges of positions",
        ),
    ],
)
def test_what_would_take_no_end_of_time_or_memory_is_void(entry: AnyEntry, why: str) -> None:
    assert why in objection(entry)
    ledger = begun()
    [reply] = ledger.apply(3, entry)
    assert isinstance(reply, Reply) and isinstance(reply.answer, Void) and why in reply.answer.reason
    assert not ledger.ended


def test_a_long_resumed_loop_is_planned_without_a_word_on_its_past_epochs() -> None:
    ledger = begun()
    last = 10**6
    ledger.apply(3, planned(epochs=2 * last, used_before=last, done=(Range(last, 0, 4),)))
    assert ledger.leases is not None
    assert (ledger.leases.epoch, ledger.leases.position, ledger.leases.free) == (last, 4, last * 10 - 4)


def test_positions_are_not_shattered_without_end() -> None:
    """Every second position, again and again: each entry would take longer than the one before it."""
    ledger, request = begun(), 2
    ledger.apply(3, planned(samples=10**6))
    ledger.apply(4, Lease(worker=0, request=3, generation=1, updates=10**6, loop=1))
    request, number, voids = 3, 4, 0
    for start in range(0, 20_000, 2000):
        request, number = request + 1, number + 1
        used = tuple(Range(0, start + each, start + each + 1) for each in range(0, 2000, 2))
        push = Push(
            worker=0,
            request=request,
            generation=1,
            view=1,
            push=PushId(0, request),
            terms=PushTerms(groups=()),
            used=used,
        )
        effects = ledger.apply(number, push)
        voids += any(isinstance(each, Reply) and isinstance(each.answer, Void) for each in effects)
    assert ledger.leases is not None
    assert voids and ledger.leases.pieces < 5000
    request, number = request + 1, number + 1
    rest = ledger.leases.held[0][-1]
    plain = Push(
        worker=0,
        request=request,
        generation=1,
        view=1,
        push=PushId(0, request),
        terms=PushTerms(groups=()),
        used=(Range(0, rest.start, rest.start + 8),),
    )
    assert not any(isinstance(each, Reply) and isinstance(each.answer, Void) for each in ledger.apply(number, plain)), (
        "who uses positions in order is not concerned"
    )


def test_an_entry_that_raises_ends_the_ledger_alike_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    def raising(*_: object) -> None:
        raise OverflowError("int too big to convert")

    monkeypatch.setattr(Ledger, "_call", raising)
    one, other = begun(), begun()
    call = Call(worker=0, request=2, generation=1, reason="")
    effects = one.apply(3, call)
    assert effects == other.apply(3, call) == [LedgerEnded(3, one.ended)]
    assert "entry 3 of its ledger, Call of worker 0, cannot be applied: OverflowError: int too big" in one.ended
    assert one == other == msgspec.msgpack.decode(msgspec.msgpack.encode(one), type=Ledger)
    assert one.apply(4, Ask(worker=0, request=3)) == [], "nothing is decided any more"

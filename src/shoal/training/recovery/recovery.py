"""After a failed exchange: the next generation, and one state for all its members.

Members differ by at most one applied step or one meeting, because both need all of them. Whoever is furthest is the
source; whoever is behind takes its state and its place in the data, and whoever is elsewhere in the script runs it from
the top. This runs only between batches, or in a meeting outside loops.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from shoal.checkpoint.state_tree import Tree
from shoal.events import Advised, ParametersGone, StepVoided, WentBack
from shoal.membership.member.alignment import Taking
from shoal.strategies.peers.peers import Breakage, Briefed, Peers
from shoal.strategies.strategy import Iteration
from shoal.training import texts
from shoal.training.model.devices import own_device
from shoal.training.model.state import load_buffers, load_state, state_of
from shoal.training.recovery.regrouping import Regrouped, Regrouping
from shoal.training.script.call_results import encode_result
from shoal.training.script.loop_end import without_later, wound_back
from shoal.training.script.past import Past, StartAgain
from shoal.training.script.script_calls import decode_calls, encode_calls
from shoal.training.session import Session
from shoal.values import Cursor, Standing
from shoal.wire.messages import Done, ExchangeBroken, Ready


@dataclass(frozen=True)
class Recovered:
    cursor: Cursor
    has_passed: bool = False  # the meeting that broke here was complete on the source: it is over, and has a result
    result: Any = None


def undo_void(session: Session, iteration: Iteration) -> None:
    """Restore what the script's code changed in a void step, and in the stretch that the step belongs to."""
    breakage, earlier = iteration.breakage, 0 if session.unit.start is None else session.unit.start.samples
    assert breakage is not None
    session.go_back()
    session.peers.report(
        StepVoided(
            worker=session.peers.worker,
            generation=session.peers.generation.number,
            step=breakage.step,
            operation=breakage.operation,
            reason=breakage.reason,
            samples=earlier + iteration.step_samples,
            is_own=session.strategy.manners.is_free,
        )
    )


def recover(session: Session, breakage: Breakage, cursor: Cursor, *, in_place: bool = True) -> Recovered:
    """Enter the next generation. Returns where to go on, the same on every member. `cursor`: this worker's own place.

    Raises StartAgain where the script has to run from the top to get there. `in_place`: the script can go on in its
    loop with another state.
    """
    session.saver.fence()
    session.reporter.tell(step=session.step)
    if breakage.is_total:
        _tell_lost(session)
    session.rebind()
    regrouping = Regrouping(session.peers, partial(_payload, session, cursor))
    done = regrouping.run(_notice(session, breakage), session.standing())
    return take(session, done, cursor, in_place=in_place)


def finish_together(session: Session) -> bool:
    """Wait until the script is done on all workers. False where all, this worker included, have regrouped instead.

    Raises StartAgain where a worker was lost before it was done: all run the code behind the last loop again.
    """
    cursor = Cursor() if session.loop is None else session.loop.cursor
    session.peers.set_position(session.step, "waiting for the others at the end of the script")
    notice = Done(
        generation=session.peers.generation.number,
        step=session.step,
        reason=session.stopped or "the script is done",
        points=session.place.points,
        is_through=session.place.is_through,
    )
    done = Regrouping(session.peers, partial(_payload, session, cursor)).finish(notice, session.standing())
    if done is None:
        return True
    take(session, done, cursor, in_place=False)
    return False


def enter(session: Session, *, gives: bool = False, at_end: bool = False) -> None:
    """A newcomer's script has come to a call that needs the others: get in, unless they have passed that call.

    While the newcomer waits it is told what their scripts have called, and compares: see `script_calls`. A call that
    they have passed needs nobody, and the script goes on without being in a generation. `gives`: the call has a result.
    `at_end`: the script has come to its end, which needs them too. Raises TermsDiffer.
    """
    peers, script = session.peers, session.script
    while peers.is_new and (at_end or not script.is_over(gives=gives)):
        if at_end:
            script.end()
        peers.set_position(0, "waiting to be let in")
        ready = Ready(generation=peers.generation.number, seen=script.seen, is_ahead=script.is_ahead)
        try:
            done = Regrouping(peers, partial(_payload, session, Cursor())).run(ready, session.standing())
        except Briefed as briefed:
            script.learn(briefed.first, briefed.calls)
            continue
        if done.taking is not Taking.PAST or done.payload is None:
            raise StartAgain("the job starts from its newest checkpoint", is_settled=True)
        past = past_from(done.payload)
        if not _has_gone_through(session, past):
            raise StartAgain("the others are elsewhere in the script", past, is_settled=True)
        session.go_through(past)


def _has_gone_through(session: Session, past: Past) -> bool:
    """Whether all that this script has passed on its own is over for the others too, with the same results.

    False where they have begun anew, or gone back, since this worker was told of their calls. A script that has
    passed the loop which they are behind runs again too: its code there must see the trained model.
    """
    known = [encode_result(result) for result in past.results[: len(session.place.results)]]
    is_same = known == [encode_result(result) for result in session.place.results]
    return is_same and session.place.loops < past.loop and session.place.points <= past.points


def join_first(peers: Peers) -> Past | None:
    """Before the script runs: wait for a generation. Returns what its members have done, if anything."""
    own_device()  # carriers between GPUs ask torch which GPU is this process's
    # A member from the start has no state to give or to take. A worker that is left out is a newcomer.
    try:
        done = Regrouping(peers).run(Ready(generation=0, seen=0, is_ahead=True), Standing(is_new=True))
    except Briefed:
        return None
    return None if done.payload is None else past_from(done.payload)


def past_from(payload: Tree) -> Past:
    place = payload["place"]
    return Past(
        state=payload,
        loop=place["loop"],
        first_step=place["first_step"],
        results=tuple(payload["results"]),
        points=place["points"],
        in_loop=place["in_loop"],
        ended=place["ended"],
        calls=tuple(decode_calls(payload["calls"])),
    )


def own_past(session: Session, cursor: Cursor) -> Past:
    """What a script that starts again from the top in this process goes on with."""
    return past_from(_payload(session, cursor))


def _tell_lost(session: Session) -> None:
    """Report that all parameters are lost, since no server is left to do so. The record has it once."""
    blocks, size = session.strategy.held
    reason = "all servers that held them are lost"
    session.peers.report(ParametersGone(server=None, blocks=blocks, size=size, reason=reason))


def tell_batch(session: Session) -> None:
    """Report what becomes of the batch, if the number of workers has changed."""
    loop = session.loop
    if loop is not None and session.place.in_loop and not session.strategy.manners.is_free:  # else each has its own
        session.progress.resized(
            global_batch=loop.dealing().step_size, lr_factor=session.lr_factor, resize=session.config.resize
        )


def take_place(session: Session, payload: Tree) -> None:
    """What all members must agree on besides the state: that loops end, and which checkpoints they have and trust."""
    place = payload["place"]
    session.held.stop(place["stopped"])
    session.saver.go_on_from(place["saved_step"], place["saved_name"])
    session.held.trust(place["compared"])


def _notice(session: Session, breakage: Breakage) -> ExchangeBroken:
    generation = session.peers.generation
    return ExchangeBroken(
        generation=generation.number,
        step=breakage.step,
        operation=breakage.operation,
        peer=None if breakage.peer is None else generation.members[breakage.peer].worker,
        reason=breakage.reason,
        at_end=breakage.at_end,
        holds=session.held.generation,
        point=breakage.point,
        is_planned=breakage.is_planned,
        must_restore=breakage.must_restore,
    )


def _payload(session: Session, cursor: Cursor, *, goes_back: bool = False) -> Tree:
    """All that another worker needs to be where this one is. `goes_back`: at the end of this worker's last loop."""
    end = session.place.loop_end
    place = {
        "loop": session.place.loops,
        "first_step": 0 if session.loop is None else session.loop.first_step,
        "points": session.place.points,
        "in_loop": session.place.in_loop,
        "stopped": session.stopped,
        "ended": session.place.ended,
        "saved_step": session.saver.last_step,
        "saved_name": session.saver.last_name,
        "compared": session.held.compared,
    }
    script = {"results": list(session.place.results), "calls": encode_calls(session.script.own)}
    if end is None or not goes_back:
        behind = None if end is None else end.as_tree()
        return {**state_of(session, cursor), **script, "place": place, "end": behind}
    place |= {"loop": end.loop, "first_step": end.first_step, "points": end.points, "in_loop": True}
    script["calls"] = encode_calls(session.script.own[: end.calls])
    whole = {**state_of(session, end.cursor), **script}
    return {**without_later(wound_back(whole, end)), "place": place, "end": None}


def take(session: Session, done: Regrouped, cursor: Cursor, *, in_place: bool) -> Recovered:
    """Go on in the new generation, with the state that its members agreed on and at that state's place."""
    session.rebind()
    session.held.doubt(is_doubtful=False)
    session.batch.forget_calls()
    ahead = 0
    if done.payload is not None and not session.strategy.manners.is_free:  # steps of free workers do not compare
        ahead = done.payload["step"] - session.step
    session.unit.settle(ahead=ahead, holds=session.held.generation)
    tell_batch(session)
    if done.alignment.missed:
        _tell_missed(session, done)
    recovered = _taken(session, done, cursor, in_place=in_place)
    session.reporter.entered(session.held.generation, step=session.step)
    return recovered


def _taken(session: Session, done: Regrouped, cursor: Cursor, *, in_place: bool) -> Recovered:
    payload = done.payload
    if done.taking is Taking.START:
        trusted = session.held.compared if done.was_hopeless else None
        raise StartAgain("the job starts from its newest checkpoint", is_settled=True, trusted=trusted)
    if done.alignment.missed and not session.place.in_loop:
        payload = _payload(session, cursor, goes_back=True) if payload is None else payload
        # All members run that code again and make the same calls. These may differ from the earlier ones where they
        # depend on the number of workers: nothing is compared.
        past = replace(past_from(payload), calls=())
        raise StartAgain("a worker was lost in the code behind the last loop", past, is_settled=True)
    if done.taking in (Taking.RESTART, Taking.PAST) or (done.taking is Taking.LOAD and not in_place):
        assert payload is not None
        text = texts.goes_elsewhere(payload["step"], done.taking.value)
        session.peers.report(Advised(worker=session.peers.worker, text=text))
        raise StartAgain("the others are elsewhere in the script", past_from(payload), is_settled=True)
    session.held.agree(session.peers.generation.number)
    if payload is None:
        return Recovered(cursor)
    if done.taking is Taking.LOAD:
        cursor = load_state(session, payload)
        take_place(session, payload)
        return Recovered(cursor)
    load_buffers(session, payload)
    take_place(session, payload)
    results = payload["results"]
    result = results[len(session.place.results)] if len(results) > len(session.place.results) else None
    return Recovered(cursor, has_passed=True, result=result)


def _tell_missed(session: Session, done: Regrouped) -> None:
    """Workers were lost in code after a loop: one member reports it for all."""
    if session.peers.group.rank != (done.alignment.source or 0):
        return
    missed = done.alignment.missed
    lost = " and ".join(f"worker {worker}" for worker in missed)
    text = f"{lost} {'was' if len(missed) == 1 else 'were'} lost in the code behind loop {session.place.loops}; "
    text += "all workers run it again"
    if done.taking is Taking.START:
        text += ", and what led there: that code has changed parameters on all of them"
    went = WentBack(worker=session.peers.worker, lost=missed, loop=session.place.loops, step=session.step, reason=text)
    session.peers.report(went)

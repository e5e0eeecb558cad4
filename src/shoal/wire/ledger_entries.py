"""What a job's ledger is made of: entries that workers propose and the home server puts in one order, and answers.

The same entries in the same order make the same ledger on every server: see `parameters.ledger`. An entry names the
worker that proposed it and the number of its request, so that one that is proposed again is recognised.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from shoal.bounds import Count, Items, Members, Name, Ordinal, Text, Total
from shoal.wire.tables import LoopTerms, PushId, PushTerms, Range

Reason = Annotated[str, Meta(max_length=2000)]  # every answer to every worker repeats it


class Entry(msgspec.Struct, frozen=True, kw_only=True, tag_field="entry"):
    """Base of all entries."""


class Begin(Entry, frozen=True, tag="begin"):
    """Home's own: a version of the server map begins. Pushes staged under earlier ones are void from here on."""

    view: Ordinal


class Proposal(Entry, frozen=True, kw_only=True):
    """Base of those that workers propose."""

    worker: Ordinal
    request: Count  # counts up in the worker's process, one at a time


class Enrol(Proposal, frozen=True, tag="enrol"):
    """The workers of a generation. Leases and open pushes of all others are void. Each member says it; once counts."""

    generation: Ordinal
    workers: Members[Ordinal]
    mode: Name  # synchronous or asynchronous
    staleness: Count | None = None  # most clocks between a worker and the slowest; None: no bound
    scaling: Name = "lr"  # what staleness scales: lr, gradient or none


class PlanLoop(Proposal, frozen=True, tag="plan-loop"):
    """A loop over data begins, or goes on in a resumed job."""

    generation: Ordinal
    terms: LoopTerms


class Lease(Proposal, frozen=True, tag="lease"):
    """The worker wants positions. Answered when there are some, when all are used, or when a meeting is called."""

    generation: Ordinal
    updates: Count  # how many updates' worth it would like
    loop: Ordinal = 0  # which loop it speaks of; one that is past is over
    meetings: Total = 0  # that the worker has attended
    holds: Members[Range] = ()  # of its earlier leases, what it will still use; the rest it gives back


class Push(Proposal, frozen=True, tag="push"):
    """Everything of this push is staged everywhere: may it be applied? Synchronous: with those of all members."""

    generation: Ordinal
    view: Ordinal  # version of the map that it was staged under
    push: PushId
    terms: PushTerms
    step: Count = 0  # synchronous: which step it is for
    used: Members[Range] = ()  # asynchronous: the leased positions that it used up


class Assign(Proposal, frozen=True, tag="assign"):
    """What is staged as this push replaces values and state: first weights, or those of a checkpoint."""

    generation: Ordinal
    view: Ordinal
    push: PushId
    updates: Count  # how many updates the new values stand for


class Call(Proposal, frozen=True, tag="call"):
    """All workers should meet at the end of their present update: to save, to let somebody in, to stop."""

    generation: Ordinal
    reason: Reason
    meetings: Total = 0  # that the worker has attended: one that was called since serves it as well


class Withdraw(Proposal, frozen=True, tag="withdraw"):
    """Was this step's push applied? If not it never will be. Synchronous, when the group broke."""

    generation: Ordinal
    step: Count


class Ask(Proposal, frozen=True, tag="ask"):
    """Where is the loop? Asked in a meeting, where nobody has an update under way."""


AnyEntry = Begin | Enrol | PlanLoop | Lease | Push | Assign | Call | Withdraw | Ask


# Answers, to the worker that proposed


class Answer(msgspec.Struct, frozen=True, kw_only=True, tag_field="answer"):
    request: Count
    number: Total  # of the entry that led to the answer: reads "at least" this see what the answer speaks of
    updates: Total = 0  # applied so far
    meetings: Total = 0  # that were called so far
    calling: Reason = ""  # why the newest one was


class Done(Answer, frozen=True, tag="done"):
    """It is so: enrolled, planned, assigned, called."""


class Granted(Answer, frozen=True, tag="granted"):
    lease: Range | None  # None: there is nothing to do now
    is_over: bool = False  # every position of the loop is used, for good


class Committed(Answer, frozen=True, tag="committed"):
    """The push is applied, with this number of updates before it that its gradient did not know."""

    staleness: Total = 0
    factor: float = 1.0  # what its learning rates were multiplied by
    base: Total = 0  # updates that the values stood for when they were last assigned
    used: Total = 0  # asynchronous: samples that the updates since have used, with this one


class Void(Answer, frozen=True, tag="void"):
    """The push will never be applied."""

    reason: Text
    restage: bool = False  # the servers have changed: stage it again, by the present map


class Told(Answer, frozen=True, tag="told"):
    """Where the loop is: every position before (epoch, position) is used or in `open`, none after it is."""

    loop: Ordinal = 0  # number of the planned loop; 0: none
    epoch: Total = 0
    position: Total = 0
    open: Items[Range] = ()  # leased and not used yet, or given back
    is_over: bool = False


AnyAnswer = Done | Granted | Committed | Void | Told

"""The entries of a job's ledger, which workers propose and the home server puts in one order, and the answers.

The same entries in the same order make the same ledger on every server: see `parameters.ledger`. An entry names the
worker that proposed it and the number of its request, so that a repeated proposal is recognised.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from shoal.bounds import Count, Items, Members, Name, Ordinal, Text, Total
from shoal.wire.tables import LoopTerms, PushId, PushTerms, Range

Reason = Annotated[str, Meta(max_length=2000)]  # bounded, since every answer to every worker repeats it


class Entry(msgspec.Struct, frozen=True, kw_only=True, tag_field="entry"):
    """Base of all entries."""


class Begin(Entry, frozen=True, tag="begin"):
    """From the home server itself: a version of the server map begins. Pushes staged under earlier ones are void."""

    view: Ordinal


class Proposal(Entry, frozen=True, kw_only=True):
    """Base of entries that workers propose."""

    worker: Ordinal
    request: Count  # counts up in the worker's process, one at a time


class Enrol(Proposal, frozen=True, tag="enrol"):
    """The workers of a generation. Leases and open pushes of other workers are void.

    Each member proposes it; only the first proposal counts.
    """

    generation: Ordinal
    workers: Members[Ordinal]
    mode: Name  # synchronous or asynchronous
    staleness: Count | None = None  # most clocks between a worker and the slowest; None: no bound
    scaling: Name = "lr"  # what staleness scales: lr, gradient or none


class OpenLoop(Proposal, frozen=True, tag="open-loop"):
    """A loop over data begins, or goes on in a resumed job."""

    generation: Ordinal
    terms: LoopTerms


class Lease(Proposal, frozen=True, tag="lease"):
    """The worker wants positions. Answered when there are some, when all are used, or when a meeting is called."""

    generation: Ordinal
    updates: Count  # how many updates' worth of positions the worker would like
    loop: Ordinal = 0  # number of the loop; an earlier loop is over
    meetings: Total = 0  # that the worker has attended
    holds: Members[Range] = ()  # positions of earlier leases that the worker will still use; it gives the rest back


class Push(Proposal, frozen=True, tag="push"):
    """All bytes of this push are staged: may it be applied? Synchronous pushes of all members are applied together."""

    generation: Ordinal
    view: Ordinal  # version of the map under which the push was staged
    push: PushId
    terms: PushTerms
    step: Count = 0  # synchronous: the push's step
    used: Members[Range] = ()  # asynchronous: the leased positions that the push used up


class Assign(Proposal, frozen=True, tag="assign"):
    """The bytes staged as this push replace values and state: first weights, or those of a checkpoint."""

    generation: Ordinal
    view: Ordinal
    push: PushId
    updates: Count  # how many updates the new values stand for


class Call(Proposal, frozen=True, tag="call"):
    """All workers should meet at the end of their present update: to save, to let newcomers in, to stop."""

    generation: Ordinal
    reason: Reason
    meetings: Total = 0  # that the worker has attended: a meeting called since then serves as well


class Withdraw(Proposal, frozen=True, tag="withdraw"):
    """Ask whether this step's push was applied; if not, it never will be. Synchronous only, when the group broke."""

    generation: Ordinal
    step: Count


class Ask(Proposal, frozen=True, tag="ask"):
    """Ask where the loop is. Asked in a meeting, where no worker has an update under way."""


AnyEntry = Begin | Enrol | OpenLoop | Lease | Push | Assign | Call | Withdraw | Ask


# Answers, to the worker that proposed


class Answer(msgspec.Struct, frozen=True, kw_only=True, tag_field="answer"):
    request: Count
    number: Total  # of the entry that led to the answer: pulls with `at_least` this number see its effect
    updates: Total = 0  # applied so far
    meetings: Total = 0  # called so far
    calling: Reason = ""  # why the newest meeting was called


class ProposalDone(Answer, frozen=True, tag="done"):
    """The proposal took effect: enrolled, planned, assigned, called."""


class Granted(Answer, frozen=True, tag="granted"):
    lease: Range | None  # None: there are no positions now
    is_over: bool = False  # every position of the loop is used, for good


class Committed(Answer, frozen=True, tag="committed"):
    """The push is applied."""

    staleness: Total = 0  # updates before it that its gradient had not seen
    factor: float = 1.0  # by which its learning rates were multiplied
    base: Total = 0  # updates in the values when they were last assigned
    used: Total = 0  # asynchronous: samples that the updates since then have used, including this one


class Void(Answer, frozen=True, tag="void"):
    """The push will never be applied."""

    reason: Text
    restage: bool = False  # the servers have changed: stage the push again, by the present map


class Told(Answer, frozen=True, tag="told"):
    """Where the loop is: positions before (epoch, position) are used or in `open`, later ones are neither."""

    loop: Ordinal = 0  # number of the planned loop; 0: none
    epoch: Total = 0
    position: Total = 0
    open: Items[Range] = ()  # leased and not used yet, or given back
    is_over: bool = False


AnyAnswer = ProposalDone | Granted | Committed | Void | Told

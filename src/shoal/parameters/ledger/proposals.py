"""Which entries a worker may propose for the ledger, beyond what their types already ensure. Pure.

Checked before an entry is numbered, where the worker is told why it is refused, and again by every ledger, since all
must come to the same result whatever an entry holds. The limits keep the time that an entry takes in proportion to its
bytes. Not here: whether an entry fits the state of the ledger (`ledger`), or the table (`update_rules`).
"""

from __future__ import annotations

from shoal.wire.ledger_entries import AnyEntry, Enrol, Lease, OpenLoop, Push
from shoal.wire.tables import LoopTerms

LAST_EPOCH = 1 << 48
MOST_PIECES = 1024  # ranges of positions that one entry names; a push usually has one
MOST_GAPS = 1024  # epochs of a resumed loop without any range in `done`, in addition to one per range


def objection(entry: AnyEntry) -> str:
    """Why the entry cannot be taken; empty: it can."""
    if isinstance(entry, OpenLoop):
        return _to_loop(entry.terms)
    if isinstance(entry, Enrol) and len(set(entry.workers)) < len(entry.workers):
        return f"generation {entry.generation} names a worker twice"
    pieces = entry.holds if isinstance(entry, Lease) else entry.used if isinstance(entry, Push) else ()
    if len(pieces) > MOST_PIECES:
        return f"it names {len(pieces)} ranges of positions; at most {MOST_PIECES} are taken at once"
    return ""


def _to_loop(terms: LoopTerms) -> str:
    loop = f"a loop of {terms.epochs} epochs from {terms.first_epoch} on, with {terms.samples} samples each"
    if terms.update < 1:
        return f"{loop} has updates of {terms.update} samples; 1 or more are needed"
    if terms.first_epoch + terms.epochs > LAST_EPOCH:
        return f"{loop} would end after epoch {LAST_EPOCH}"
    last = max((piece.epoch for piece in terms.done), default=0)
    spanned = min(last, terms.first_epoch + terms.epochs) - max(terms.first_epoch, terms.used_before)
    if spanned > 2 * len(terms.done) + MOST_GAPS:
        return f"{loop} has used positions of epoch {last}, and nothing is said of most epochs before it"
    return ""

"""Whether all workers were given the same data: compared where a loop or an evaluation starts.

Costs one small exchange; hashes are read once per data set. Where samples differ, every worker reads them again a
little later: what one worker reads differently then, such as a sample that depends on the time of day, is left out. Not
here: what is hashed (`data.fingerprint`), and what a newcomer compares (`script_calls`).
"""

from __future__ import annotations

import time

import torch

from shoal.collectives.group import Group
from shoal.data import texts
from shoal.data.feed import Feed
from shoal.data.fingerprint import DataDifference, Fingerprint, first_difference
from shoal.errors import UsageError
from shoal.events import ScriptDoubtful
from shoal.terms import SampleHashes, changed_sample
from shoal.training.script.call_terms import LENGTH
from shoal.training.script.past import Past
from shoal.training.session import Session
from shoal.values import Cursor

PAUSE = 1.1  # seconds between two readings: samples that depend on a clock mostly count seconds


def compare_data(session: Session, feed: Feed, cursor: Cursor, what: str, label: str) -> None:
    """`what` names the loop or the evaluation, `label` the place where all meet.

    Raises UsageError where the data differ, and ExchangeFailed.
    """
    group = session.peers.group
    if group.size == 1 or feed.own_data:
        return
    mine = feed.fingerprint(cursor)
    found = first_difference(_gathered(group, mine, f"{label}, data"))
    if found is not None and found.index is not None:
        time.sleep(PAUSE)
        mine = mine.steady(feed.fingerprint(cursor, anew=True))
        found = first_difference(_gathered(group, mine, f"{label}, data read again"))
    if found is not None:
        _tell(session, feed, found, what)


def _tell(session: Session, feed: Feed, found: DataDifference, what: str) -> None:
    first, second = (session.peers.generation.members[rank].worker for rank in found.ranks)
    call = "run.evaluate" if what.startswith("run.evaluate") else "run.batches"
    if found.index is None:
        raise UsageError(texts.lengths_differ(what, found.lengths, (first, second)))
    if not feed.is_one_shot:
        raise UsageError(texts.sample_differs(what, found.index, (first, second), call))
    # An iterator cannot be read again, to tell one that is split by rank from one that draws at random.
    if session.peers.group.rank == 0:
        text = texts.stream_may_differ(what, found.index, (first, second), call)
        session.peers.report(ScriptDoubtful(worker=session.peers.worker, text=text))


def _gathered(group: Group, mine: Fingerprint, label: str) -> list[Fingerprint]:
    own = torch.tensor(mine.as_numbers(), dtype=torch.int64)
    all_of_them = [torch.empty_like(own) for _ in range(group.size)]
    group.all_gather(all_of_them, own, label=label).wait()
    return [Fingerprint.from_numbers(numbers.tolist()) for numbers in all_of_them]


# A resumed job

HASHES = "hashes of samples"  # in the terms that a checkpoint keeps of its loop


def kept_hashes(samples: SampleHashes) -> str:
    """As text: terms are text."""
    return " ".join(f"{index}:{number}" for index, number in samples)


def warn_of_change(session: Session, past: Past, samples: SampleHashes) -> None:
    """Warn where a sample is not what it was when the checkpoint was made, and the checkpoint is inside an epoch."""
    then, position = past.state.get("terms", {}), past.state["cursor"][1]
    if not position or str(position) == then.get(LENGTH):
        return
    try:
        pairs = (pair.split(":") for pair in then.get(HASHES, "").split())
        before = tuple((int(index), int(number)) for index, number in pairs)
    except ValueError:
        return  # written by hand: nothing to compare with
    changed = changed_sample(before, samples)
    if changed is not None and session.peers.group.rank == 0:
        text = texts.sample_changed(f"loop {past.loop}", changed, session.saver.last_name)
        session.peers.report(ScriptDoubtful(worker=session.peers.worker, text=text))

"""Scores over a data set, shared out over all workers: `run.evaluate`.

Each sample is scored once. The user's function returns means over its batch; these are averaged by samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from shoal.collectives.group import Group
from shoal.data.dealing import Dealing
from shoal.data.feed import Feed
from shoal.errors import UsageError
from shoal.events import Evaluated
from shoal.training import texts
from shoal.training.mistakes.compared_data import compare_data
from shoal.training.model.devices import moved
from shoal.training.reporting.reporter import finite
from shoal.training.script.call_terms import data_terms
from shoal.training.script.meetings import gather
from shoal.training.session import Session
from shoal.values import Cursor

Scores = Mapping[str, Any]


def evaluate(session: Session, score: Callable[..., Any], feed: Feed) -> dict[str, float]:
    """Names and means over the whole data set, the same on every worker."""
    seen: list[str] = []  # names of this worker's own scores

    def reduce(group: Group, label: str) -> dict[str, float]:
        # After a regrouping this starts from the first sample: the data are dealt out anew.
        compare_data(session, feed, Cursor(), f"run.evaluate at step {session.step}", label)
        sums, samples = _own_sums(session, score, feed)
        seen[:] = sorted(sums)
        together = torch.tensor([samples, *(sums[name] for name in seen)], dtype=torch.float64)
        group.all_reduce(together, label=f"{label}, scores {','.join(seen)}").wait()
        total, *means = together.tolist()
        scores = {name: mean / total for name, mean in zip(seen, means, strict=True)} if total else {}
        if group.rank == 0:
            told = {name: finite(score) for name, score in scores.items()}
            session.peers.report(Evaluated(step=session.step, samples=int(total), scores=told))
        return scores

    try:
        scores = gather(session, "evaluation", reduce, alone=None, terms=data_terms(feed))
    finally:
        feed.close()
    # None: the exchange failed in an iteration. Scores of a part of the data must not pass for those of all.
    return dict.fromkeys(seen, math.nan) if scores is None else dict(scores)


def _own_sums(session: Session, score: Callable[..., Any], feed: Feed) -> tuple[dict[str, float], int]:
    """Sums over this worker's samples, and their number. A worker without samples learns the names from a stand-in."""
    members = session.peers.generation.members
    dealing = Dealing(
        rank=session.peers.group.rank, shares=tuple(member.share for member in members), batch_size=feed.batch_size
    )
    sums: dict[str, float] = {}
    samples = 0
    with evaluation_mode(session.watched.models.values()):
        batches = feed.batches(Cursor(), dealing)
        try:
            for batch in batches:
                for name, value in _named(_call(score, moved(batch.data, session.device))).items():
                    sums[name] = sums.get(name, 0.0) + (float(value) * batch.samples if batch.samples else 0.0)
                samples += batch.samples
        finally:
            batches.close()
    return sums, samples


def _call(score: Callable[..., Any], data: Any) -> Any:
    """A batch that is a tuple or list is spread over the function's arguments, as in `for x, y in ...`."""
    return score(*data) if isinstance(data, tuple | list) else score(data)


def _named(result: Any) -> Scores:
    scores: Scores = result if isinstance(result, Mapping) else {"score": result}
    for name, value in scores.items():
        if not isinstance(value, int | float) and not (isinstance(value, torch.Tensor) and value.numel() == 1):
            raise UsageError(texts.bad_score(name, value))
    return scores


@contextmanager
def evaluation_mode(models: Iterable[nn.Module]) -> Iterator[None]:
    """No gradients, every module in evaluation mode; afterwards each module is as it was."""
    modes = [(module, module.training) for model in models for module in model.modules()]
    for module, _ in modes:
        module.training = False
    try:
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes:
            module.training = mode

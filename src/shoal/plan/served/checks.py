"""What must be true of a simulated job on parameter servers when it is over.

All servers have the same ledger; no answer that a worker heard was taken back; no push was applied twice or in part;
every sample was used once, or every step was applied once and in order.
"""

from __future__ import annotations

from shoal.parameters.ledger.effects import Reply, Update
from shoal.parameters.ledger.ledger import Ledger
from shoal.plan.members.invariants import Violation
from shoal.plan.served.served_job import ServedJob
from shoal.plan.served.served_terms import ServedTerms
from shoal.plan.served.server_process import ServerProcess
from shoal.wire.ledger_entries import AnyAnswer, AnyEntry, Committed, Push
from shoal.wire.tables import PushId

ONE_LEDGER = "all servers have one ledger"
KEPT = "no answer is taken back"
APPLIED = "every update is applied once, and whole, on all servers"
ONCE = "each sample once"

Updates = list[tuple[int, tuple[PushId, ...]]]  # number of the entry, and the pushes that it applies
Answers = dict[tuple[int, int], AnyAnswer]  # by worker and request


def check(job: ServedJob) -> None:
    servers = job.group.members
    ledgers = [server.sequencer.ledger for server in servers]
    log = servers[0].sequencer.log
    _must(ONE_LEDGER, all(server.sequencer.log == log for server in servers), "servers have different entries")
    _must(ONE_LEDGER, all(ledger == ledgers[0] for ledger in ledgers), "the same entries led to different ledgers")
    ledger, answers, updates = _replay(log)
    _must(ONE_LEDGER, ledger == ledgers[0], "a replay leads to another ledger")
    for worker in job.workers.values():
        for request, answer in worker.told.items():
            is_so = answers.get((worker.number, request)) == answer
            _must(KEPT, is_so, f"worker {worker.number} was told {answer}, which is not so")
    every = [push for _, pushes in updates for push in pushes]
    _must(APPLIED, len(every) == len(set(every)), "a push was applied twice")
    for server in servers:
        _check_applied(server, updates)
    pushes = [entry for entry in log.values() if isinstance(entry, Push)]
    if job.terms.mode == "synchronous":
        _check_steps(job.terms, pushes, updates)
    else:
        _check_samples(job.terms, [push for push in pushes if _is_committed(push, answers)])
        _must(ONCE, ledger.leases is not None and ledger.leases.is_over, "the loop is not at its end")


def _replay(log: dict[int, AnyEntry]) -> tuple[Ledger, Answers, Updates]:
    ledger = Ledger()
    answers: Answers = {}
    updates: Updates = []
    for number in range(1, len(log) + 1):
        for effect in ledger.apply(number, log[number]):
            if isinstance(effect, Reply):
                answers[effect.worker, effect.answer.request] = effect.answer
            elif isinstance(effect, Update):
                updates.append((number, effect.pushes))
    return ledger, answers, updates


def _check_applied(server: ServerProcess, updates: Updates) -> None:
    """Whether the server has applied all updates since its start."""
    numbers = [number for number, _ in server.applied]
    _must(APPLIED, numbers == sorted(set(numbers)), f"server {server.number} applied entries {numbers}")
    known = dict(updates)
    mine = {number: pushes for number, pushes in server.applied if number in known}
    start = min(mine, default=max(known, default=0) + 1)
    since = {number: pushes for number, pushes in updates if number >= start}
    _must(APPLIED, mine == since, f"server {server.number} lacks an update since entry {start}")


def _check_steps(terms: ServedTerms, pushes: list[Push], updates: Updates) -> None:
    steps_of = {push.push: push.step for push in pushes}
    steps = [{steps_of[push] for push in together} for _, together in updates]
    _must(ONCE, steps == [{step} for step in range(terms.steps)], f"steps were applied in the order {steps}")


def _check_samples(terms: ServedTerms, committed: list[Push]) -> None:
    loop = terms.loop
    used = sorted(
        (piece.epoch, position)
        for push in committed
        for piece in push.used
        for position in range(piece.start, piece.stop)
    )
    epochs = range(loop.first_epoch, loop.first_epoch + loop.epochs)
    expected = [(epoch, position) for epoch in epochs for position in range(loop.samples)]
    _must(ONCE, used == expected, f"{len(used)} samples were used, {len(set(used))} different ones of {len(expected)}")


def _is_committed(push: Push, answers: Answers) -> bool:
    return isinstance(answers.get((push.worker, push.request)), Committed)


def _must(invariant: str, is_true: bool, otherwise: str) -> None:
    if not is_true:
        raise Violation(invariant, otherwise)

"""Simulated jobs on parameter servers, with deaths, stops, cuts and newcomers at random moments of virtual time.

Reads, answers and updates are checked as they happen, and everything else when the job is over (`plan.served.checks`).
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from shoal.parameters.client.lineage import Lineage
from shoal.parameters.ledger import ledger as ledger_module
from shoal.parameters.ledger import sequencer as sequencer_module
from shoal.parameters.ledger.clocks import Clocks
from shoal.parameters.ledger.leases import Leases
from shoal.parameters.ledger.ledger_state import LedgerState
from shoal.parameters.ledger.sequencer import Sequencer
from shoal.plan.members.invariants import Violation
from shoal.plan.served.simulation import simulate_served

ENOUGH = 150  # seeds in which a broken variant must be noticed
FIRST, BLOCK = 1000, 100  # of the long runs: their first seed, and how many seeds a test has


@pytest.mark.parametrize("block", [*range(3), *(pytest.param(block, marks=pytest.mark.long) for block in range(3, 10))])
def test_jobs_finish_with_every_sample_used_once_whatever_dies(block: int) -> None:
    for seed in range(10 * block, 10 * (block + 1)):
        assert not simulate_served(seed).end_reason, f"seed {seed}"


@pytest.mark.parametrize("block", range(4))
def test_a_job_whose_servers_all_die_ends_with_the_reason_or_was_done_before(block: int) -> None:
    reasons = [simulate_served(seed, kills_all=True).end_reason for seed in range(25 * block, 25 * (block + 1))]
    stopped = [reason for reason in reasons if reason]
    assert len(stopped) > len(reasons) / 2
    assert all("all servers were lost" in reason for reason in stopped)


@pytest.mark.long
@pytest.mark.parametrize("block", range(20))
def test_thousands_of_jobs_finish_with_every_sample_used_once(block: int) -> None:
    for seed in range(FIRST + BLOCK * block, FIRST + BLOCK * (block + 1)):
        assert not simulate_served(seed).end_reason, f"seed {seed}"


@pytest.mark.long
@pytest.mark.parametrize("block", range(20))
def test_thousands_of_jobs_whose_servers_all_die_end_with_the_reason(block: int) -> None:
    for seed in range(FIRST + BLOCK * block, FIRST + BLOCK * (block + 1)):
        reason = simulate_served(seed, kills_all=True).end_reason
        assert not reason or "all servers were lost" in reason, f"seed {seed}"


def test_the_same_seed_gives_the_same_job() -> None:
    assert simulate_served(7) == simulate_served(7)


def forget_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that is proposed again is entered again."""
    monkeypatch.setattr(LedgerState, "has_seen", lambda *_: False)


def answer_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers hear answers before any other server has the entry."""
    settle = Sequencer._settle

    def settled(self: Sequencer, out: list[sequencer_module.Instruction]) -> None:
        settle(self, out)
        out += [sequencer_module.SendToWorker(worker, answer) for worker, answer in self._answers.items()]
        self._answers = {}

    monkeypatch.setattr(Sequencer, "_settle", settled)


def keep_leases_of_the_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Leases, "give_back_others", lambda *_: None)


def read_without_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Clocks, "allows", lambda *_: True)


def apply_withdrawn_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that withdraws is told that its step was not applied, and the step may be applied all the same."""

    def withdraw(self: ledger_module.Ledger, entry: ledger_module.Withdraw, effects: list[object]) -> None:
        self._void(entry, "withdrawn", effects)  # type: ignore[arg-type]

    monkeypatch.setattr(ledger_module.Ledger, "_withdraw", withdraw)


def accept_old_stagings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pushes that wait for the others of their step stay although the servers have changed."""
    monkeypatch.setattr(ledger_module.Ledger, "_void_open", lambda *_, **__: None)


@pytest.mark.parametrize(
    "break_it",
    [
        forget_requests,
        answer_at_once,
        keep_leases_of_the_dead,
        read_without_bound,
        apply_withdrawn_steps,
        accept_old_stagings,
    ],
)
def test_a_broken_variant_is_noticed(
    break_it: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    break_it(monkeypatch)
    with pytest.raises((Violation, AssertionError)):
        for seed in range(ENOUGH):
            simulate_served(seed)


def test_a_loss_that_nobody_waited_for_is_noticed_if_it_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker asks the next ledger for what only the lost one had, and waits for ever."""
    monkeypatch.setattr(Lineage, "is_lost", property(lambda _: False, lambda *_: None), raising=False)
    with pytest.raises(Violation, match="not over"):
        for seed in range(2 * ENOUGH):
            simulate_served(seed, kills_all=True)

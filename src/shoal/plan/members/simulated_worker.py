"""A simulated worker's process: does what its script asks for, in virtual time.

Drives the generator of `script` as `training.recovery.regrouping` drives that of `membership.member`: effects in,
answers and failures back. Not here: what the script wants (`script`), the connection to the coordinator
(`worker_client`).
"""

from __future__ import annotations

from typing import Any

from shoal.errors import ExchangeFailed
from shoal.membership.member import member
from shoal.membership.member.alignment import Alignment, Taking
from shoal.membership.member.heard import Interruption
from shoal.plan.members.script import Effect, Exchange, Script, ScriptSurroundings, Sleep, Until
from shoal.plan.members.worker_client import WorkerClient
from shoal.plan.members.worker_group import SimulatedDoorway, WorkerGroup
from shoal.plan.world.virtual_time import Process
from shoal.values import Unreached
from shoal.wire.messages import Expelled, Ready, Unanswered


class SimulatedWorker:
    def __init__(self, around: ScriptSurroundings, number: int, script: type[Script] = Script) -> None:
        self.number = number
        self.process = Process(around.time)
        self._around = around
        self._answered: Expelled | None = None  # the expulsion before its newest notice
        self._waits: Until | None = None
        self._wait_number = 0
        self._doorway = SimulatedDoorway(around.network, self.process, number)
        self._client = WorkerClient(self.process, around.network, number, self._on_news)
        self._client.on_interruption = self._interrupted
        self.script = script(around, number, self.process, self._client)
        self._running = self.script.run()
        self.process.do(lambda: self._advance(None))

    @property
    def where(self) -> str:
        return f"worker {self.number} at step {self.script.state.step}, in {self._client.position.operation}"

    def end(self, code: int) -> None:
        """End the process and its connections."""
        if self.process.is_alive:
            self.process.die()
            self._around.network.process_died(self.number)
            self._around.process_ended(self.number, code)

    # Driving the script

    def _advance(self, answer: Any, failure: ExchangeFailed | None = None) -> None:
        self._client.position.blocked_since = None
        try:
            effect = self._running.send(answer) if failure is None else self._running.throw(failure)
        except StopIteration:
            self._client.close()
            self.end(self.script.exit_code)
            return
        self._do(effect)

    def _do(self, effect: Effect) -> None:
        match effect:
            case Sleep():
                self._be_in(effect.operation)
                self.process.after(effect.seconds, lambda: self._advance(None))
            case Until():
                self._wait(effect)
            case Exchange():
                self._meet(effect)
            case member.Look():
                self._be_in("looking who answers")
                self._look()
            case member.Tell():
                if self.script.group is not None:
                    self.script.group.abort("this worker regroups")
                self._answered = self._client.heard.expulsion
                self._client.say(effect.notice)
                self.process.after(0.0, lambda: self._advance(None))
            case member.Await():
                self._be_in("waiting for the next generation")
                self._wait(Until(lambda: self._has_word(effect.after)))
            case member.Finish():
                self._answered = self._client.heard.expulsion
                self._client.say(effect.notice)
                self._be_in("waiting for the others at the end of the script")
                after, heard = effect.notice.generation, self._client.heard
                self._wait(Until(lambda: heard.is_released or self._has_word(after)))
            case member.Connect():
                self._be_in("connecting")
                self.script.group = WorkerGroup(self._doorway, effect.generation)
                self.script.group.on_silence = lambda peer: self._client.say(
                    Unanswered(generation=effect.generation.number, peer=peer)
                )
                if (reason := self._client.heard.interruption(effect.generation.number)) is not None:
                    self.script.group.abort(reason)
                timeout = max(2.0, self._around.config.heartbeat_limit)
                self.script.group.connect(timeout, lambda _: self._advance(None), self._fail)
            case member.Compare():
                self._meet(self.script.exchange("comparing where the members are", effect.standing))
            case member.Copy():
                self._be_in("copying the state")
                delay = self._around.pace.copying * self._around.time.between(0.0, 2.0)
                self.process.after(delay, lambda: self._copy(effect.alignment))

    def _look(self) -> None:
        group, heard = self.script.group, self._client.heard
        if group is None:
            self.process.after(0.0, lambda: self._advance(Unreached()))
            return
        group.look(
            self._around.config.heartbeat_limit,
            lambda: heard.interruption(group.generation.number) is not None,
            lambda unreached: self.process.after(0.0, lambda: self._advance(unreached)),
        )

    def _has_word(self, after: int) -> bool:
        """A generation with a higher number; an expulsion that comes meanwhile is answered with being ready."""
        heard = self._client.heard
        if heard.number > after:
            return True
        if heard.expulsion is not None and heard.expulsion is not self._answered:
            self._answered = heard.expulsion
            self._client.say(Ready(generation=after))
        return False

    def _be_in(self, operation: str) -> None:
        self._client.position.step, self._client.position.operation = self.script.state.step, operation

    def _meet(self, exchange: Exchange) -> None:
        self._be_in(exchange.label)
        self._client.position.blocked_since = self._around.time.now
        self.script.in_group.exchange(exchange.label, exchange.part, exchange.wanted, (self._advance, self._fail))

    def _copy(self, alignment: Alignment) -> None:
        """Each giver sends its part; only receivers wait, for all parts."""
        rank, givers = self.script.in_group.rank, alignment.givers
        takes = alignment.takings[rank] is not Taking.KEEP
        exchange = self.script.exchange(
            "copying the state", None if takes else self.script.state, givers if takes else (rank,)
        )

        def copied(answers: tuple[Any, ...]) -> None:
            if takes:
                assert alignment.source is not None
                self.script.taken = answers[alignment.source]
            self._advance(None)

        self._be_in(exchange.label)
        self._client.position.blocked_since = self._around.time.now
        self.script.in_group.exchange(exchange.label, exchange.part, exchange.wanted, (copied, self._fail))

    def _fail(self, failure: ExchangeFailed) -> None:
        self.process.after(0.0, lambda: self._advance(None, failure))

    def _wait(self, wait: Until) -> None:
        self._wait_number += 1
        number = self._wait_number
        self._waits = wait
        if wait.timeout is not None:
            self.process.after(wait.timeout, lambda: self._stop_waiting(number))
        self.process.after(0.0, self._check_wait)

    def _check_wait(self) -> None:
        wait = self._waits
        if wait is not None and wait.condition():
            self._waits = None
            heard = self._client.heard
            self._advance(None if heard.is_released else heard.generation)

    def _stop_waiting(self, number: int) -> None:
        if self._waits is not None and number == self._wait_number:
            self._waits = None
            self._advance(None)

    # News

    def _on_news(self) -> None:
        if self._client.is_over:
            ended = self._client.heard.ended
            self.end(1 if ended is None else ended.exit_code)
        else:
            self._check_wait()

    def _interrupted(self, interruption: Interruption) -> None:
        group = self.script.group
        if group is not None and (interruption.below is None or group.generation.number < interruption.below):
            group.abort(interruption.reason)

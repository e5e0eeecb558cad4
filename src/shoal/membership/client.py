"""A worker's client of the coordinator: sends the worker's messages, keeps what was heard, and waits for news.

`CoordinatorClient` keeps a worker in the job while its training thread computes, even while the coordinator is away.
Not here: the thread and the connection (`line`), what follows from messages (`heard`), the launcher's client
(`watcher`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Self

import msgspec

from shoal.errors import AddressUnavailable, WireError, by_name
from shoal.events import AnyEvent
from shoal.job_config import JobConfig, from_toml
from shoal.membership import channel, texts
from shoal.membership.core import reasons
from shoal.membership.line import Line, LineConfig
from shoal.membership.member.call_book import CallBook
from shoal.membership.member.heard import Heard, Interruption
from shoal.membership.member.outbox import Notice
from shoal.terms import Made
from shoal.values import Address, Generation
from shoal.wire.messages import (
    Briefing,
    Calls,
    CheckpointSettled,
    CoordinatorMessage,
    Done,
    Ended,
    ExchangeBroken,
    Expelled,
    Failed,
    Formed,
    Heartbeat,
    Inject,
    Join,
    Leave,
    PartFailed,
    PartWritten,
    Ready,
    Report,
    Turned,
    Unanswered,
    Welcome,
)

LAST_WORD_SECONDS = 30.0  # how long a last word (Leave, Failed) waits for a coordinator that is away
LOOK_SECONDS = 0.5  # how often a worker that is done checks whether it should go before the others
AWAY_SECONDS = 600.0  # beyond the absence limit; after that a coordinator that is away is lost


class CoordinatorClient:
    """A worker's connection to the coordinator. All methods may be called from any thread."""

    def __init__(self, settings: JobConfig, welcome: Welcome, join: Join) -> None:
        """Use `connect`."""
        self.welcome = welcome  # from the first connection
        self.settings = settings
        self.on_interrupt: Callable[[str, int | None], None] | None = None  # gets the `Interruption`'s two fields
        self.on_fault: Callable[[Inject], None] | None = None  # cuts a link or slows it down
        self.stalled: Callable[[], float] = lambda: 0.0  # seconds that this worker has been blocked in a collective
        self.disk_full_until = 0.0  # by time.monotonic: an injected fault
        self._join = join
        self._news = threading.Condition()  # guards `_heard` and `_heard_at`
        self._heard = Heard(join.worker)
        self._heard_at = time.monotonic()
        self._answered: Expelled | None = None  # the expulsion that this worker's newest notice answers
        self._position = (0, "start-up")
        self._book = CallBook(join.worker)
        self._point = 0  # the last meeting outside loops that the script has come to
        self._line: Line  # set by `connect`

    @classmethod
    def connect(cls, address: Address, token: str, join: Join, *, timeout: float) -> Self:
        """Join the job. AddressUnavailable if nobody listens, Refused if the token is wrong or the job says no."""
        connection, buffer, welcome = channel.connect(address, token, join, timeout=timeout)
        try:
            settings = from_toml(welcome.config, origin="the coordinator's configuration")
            client = cls(settings, welcome, join)
            config = LineConfig(
                address=address,
                token=token,
                interval=welcome.heartbeat,
                silence_limit=settings.heartbeat_limit,
                patience=settings.absence_limit + AWAY_SECONDS,
            )
            client._line = Line(connection, buffer, config, client)
        except BaseException:
            connection.close()
            raise
        client._line.start()
        return client

    # What the coordinator says

    @property
    def config(self) -> str:
        """The job's configuration, TOML."""
        return self.welcome.config

    @property
    def stop_reason(self) -> str | None:
        return self._heard.stop_reason

    @property
    def regroup_wish(self) -> str | None:
        return self._heard.regroup_wish

    @property
    def ended(self) -> Ended | None:
        return self._heard.ended

    @property
    def is_over(self) -> bool:
        """The job has ended or the coordinator is lost: no more messages will come."""
        return self._heard.ended is not None or self._heard.lost is not None

    @property
    def left_out_by(self) -> Generation | None:
        """The newest generation, if this worker is not in it."""
        with self._news:
            return None if self._heard.is_member else self._heard.generation

    def wait_for_generation(self, after: int) -> Generation:
        """Block until there is a generation with a higher number. Raises the job's error when the job ends first."""
        with self._news:
            while True:
                self._raise_if_over()
                generation = self._heard.generation
                if generation is not None and generation.number > after:
                    return generation
                self._news.wait()

    def wait_for_word(self, after: int) -> Generation | Expelled | Briefing:
        """The same, but a briefing, or an expulsion since the last notice, also ends the wait."""
        with self._news:
            while (word := self._word(after)) is None:
                if (briefing := self._heard.briefing) is not None:
                    self._heard.briefing = None
                    return briefing
                self._news.wait()
            return word

    def _await_word(self, after: int, timeout: float) -> Generation | Expelled | None:
        """The same without briefings; None if this worker is released, or nothing comes within `timeout` seconds."""
        with self._news:
            limit = time.monotonic() + timeout
            while not self._heard.is_released and (word := self._word(after)) is None:
                if not self._news.wait(limit - time.monotonic()):
                    return None
            return None if self._heard.is_released else word

    def _word(self, after: int) -> Generation | Expelled | None:
        self._raise_if_over()
        generation, expulsion = self._heard.generation, self._heard.expulsion
        if generation is not None and generation.number > after:
            return generation
        return expulsion if expulsion is not self._answered else None

    def wait_for_news(self, of: Generation, timeout: float) -> bool:
        """Whether within `timeout` seconds the job ended, a newer generation formed, or a briefing or release came."""

        def is_there() -> bool:
            heard = self._heard
            return self.is_over or heard.is_released or heard.number > of.number or heard.briefing is not None

        with self._news:
            return self._news.wait_for(is_there, timeout)

    def wait_heard(self, within: float) -> None:
        """Block until the coordinator was heard within the last `within` seconds. Raises the job's error as above."""
        with self._news:
            while time.monotonic() - self._heard_at > within:
                self._raise_if_over()
                self._news.wait()

    def interruption(self, generation: int) -> str | None:
        """Why work in this generation has become useless; None while it has not.

        Ask this once `on_interrupt` can act on an interruption: earlier ones are not repeated.
        """
        with self._news:
            return self._heard.interruption(generation)

    def wait_settled(self, checkpoint: str, timeout: float) -> bool | None:
        """Whether a checkpoint was published. Blocks until that is known; None after `timeout` s or the job's end."""
        with self._news:
            self._news.wait_for(lambda: checkpoint in self._heard.settled or self.is_over, timeout)
            return self._heard.settled.get(checkpoint)

    def _raise_if_over(self) -> None:
        if self._heard.ended is not None:
            raise by_name(self._heard.ended.error, self._heard.ended.text)
        if self._heard.lost is not None:
            raise AddressUnavailable(self._heard.lost)

    # What this worker says

    def set_position(self, step: int, operation: str) -> None:
        """Where the script is; the next heartbeat carries it. No I/O."""
        self._position = (step, operation)

    def reach(self, point: int) -> None:
        """How far the script has got outside loops. Sent at once: it matters if this process is killed next."""
        self._point = point
        self._line.send(self.beat())

    def report(self, *events: AnyEvent) -> None:
        if events:
            self._line.send(Report(events=events))

    def unanswered(self, generation: int, peer: int) -> None:
        """The machine of `peer` does not answer, so that a collective of this generation fails."""
        self._line.send(Unanswered(generation=generation, peer=peer))

    def tell(self, notice: Notice) -> None:
        """This worker waits for a generation, or is done. Repeated on every new connection until one has formed."""
        if isinstance(notice, ExchangeBroken):
            notice = msgspec.structs.replace(notice, reason=reasons.shortened(notice.reason))
        with self._news:
            self._answered = self._heard.expulsion
        self._line.send(notice)

    def call_made(self, index: int, made: Made) -> None:
        """The script has made a call, or the call has returned its result. Sent if this worker is the teller."""
        with self._news:  # calls must be sent in order
            self._tell_calls(self._book.made(index, made))

    def _tell_calls(self, messages: Iterable[Calls]) -> None:
        for message in messages:
            self._line.send(message)

    def part_written(self, part: PartWritten) -> None:
        """This worker's part of a checkpoint is whole and flushed."""
        self._line.send(part)

    def part_failed(self, part: PartFailed) -> None:
        """This worker's part of a checkpoint could not be written; the job goes on."""
        self._line.send(msgspec.structs.replace(part, reason=reasons.shortened(part.reason)))

    def failed(self, *, step: int, error: str, text: str) -> None:
        """This worker cannot go on. `error` is a class name from `errors`."""
        self._say_last(Failed(step=step, error=error, text=reasons.shortened(text)))

    def finish(
        self, notice: Done, leave_wish: Callable[[], str | None], wait_outside: Callable[[Ready], None]
    ) -> Generation | None:
        """This worker's script is done: wait for its release, or for a generation that needs this worker again.

        Raises the job's error as above. `leave_wish` returns why this worker should go before the others, or None.
        `wait_outside` says `Ready` for this worker after it was put out.
        """
        self.tell(notice)
        is_out = False
        while not self._heard.is_released:
            try:
                word = self._await_word(notice.generation, LOOK_SECONDS)
            except AddressUnavailable:
                if notice.is_through:  # the coordinator is gone, and nothing is left to run
                    return None
                raise
            if isinstance(word, Generation):
                return word
            if isinstance(word, Expelled):
                is_out = True
                wait_outside(Ready(generation=notice.generation))
            elif (reason := leave_wish()) is not None and is_out:
                self.leave(step=notice.step, reason=reason, is_handover=True)
                return None
            elif reason is not None and not notice.is_leaving:
                notice = msgspec.structs.replace(notice, is_leaving=True, reason=reason)
                self.tell(notice)
        return None

    def leave(self, *, step: int, reason: str, is_handover: bool = False) -> None:
        """This worker's script has come to its last line, or this worker hands its place over."""
        self._say_last(Leave(step=step, reason=reason, is_handover=is_handover))

    def _say_last(self, word: Leave | Failed) -> None:
        """Wait until the coordinator has the message; it is sent again if the connection breaks."""
        self._line.send(word)
        with self._news:
            self._news.wait_for(lambda: self._heard.is_written_down or self.is_over, LAST_WORD_SECONDS)

    def close(self) -> None:
        """Send what is waiting, for a second at most, and end thread and connection. Safe to call twice."""
        self._line.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # What the line's thread calls: see `line.Ear`

    def beat(self) -> Heartbeat:
        step, operation = self._position
        return Heartbeat(
            generation=self._heard.number, step=step, operation=operation, stalled=self.stalled(), point=self._point
        )

    def take_in(self, message: CoordinatorMessage) -> None:
        if isinstance(message, Turned):
            raise WireError(f"it turned this worker away: {message.reason}")
        if isinstance(message, Inject):
            self._suffer(message)
        with self._news:
            interruption = self._heard.take_in(message)
            number = self._heard.number
            if isinstance(message, Formed):
                self._tell_calls(self._book.formed(message.generation))
            self._news.notify_all()
        with self._line.sending:
            self._line.outbox.generation_heard(number)
            if isinstance(message, CheckpointSettled):
                self._line.outbox.settled(message.checkpoint)
            if isinstance(message, Briefing):
                self._line.outbox.briefed()
        self._interrupt(interruption)

    def all_heard(self) -> None:
        """Only now renew `_heard_at`: after a long sleep of this process, earlier messages may be old."""
        with self._news:
            self._heard_at = time.monotonic()
            self._news.notify_all()

    def first_words(self) -> Join:
        with self._news:
            number = self._heard.number if self._heard.is_member else 0
            return msgspec.structs.replace(self._join, generation=number, was_member=self._heard.was_member)

    def back(self, welcome: Welcome) -> None:
        with self._news:
            interruption = self._heard.welcomed_back(welcome)
            number = self._heard.number
            self._heard_at = time.monotonic()
            if welcome.is_member and welcome.generation is not None:
                self._book.formed(welcome.generation)
            self._tell_calls(self._book.connected())
            self._news.notify_all()
        with self._line.sending:
            self._line.outbox.generation_heard(number)
        self._interrupt(interruption)

    def lost(self, reason: str) -> None:
        with self._news:
            self._heard.lost = texts.coordinator_gone(self._line.address, reason)
            self._news.notify_all()
        self._interrupt(Interruption(self._heard.lost))

    def _suffer(self, fault: Inject) -> None:
        if fault.fault == "fill-disk":
            self.disk_full_until = time.monotonic() + fault.seconds
        elif self.on_fault is not None:
            self.on_fault(fault)

    def _interrupt(self, interruption: Interruption | None) -> None:
        if interruption is not None and self.on_interrupt is not None:
            self.on_interrupt(interruption.reason, interruption.below)

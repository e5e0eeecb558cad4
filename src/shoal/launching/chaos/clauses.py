"""Reading the text of `--chaos` into clauses. Pure. Not here: when a clause strikes (`fault_timetable`).

    VERB [TARGET] (every T | at T | at step N) [for T] [to RATE]

Several clauses are joined by ";" or ",". A mistake is a `UsageError` that names the word and what is allowed there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from shoal.errors import UsageError
from shoal.launching.chaos import texts
from shoal.settings.setting_checks import nearest

SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
BYTES = {"b/s": 1.0, "kb/s": 1e3, "mb/s": 1e6, "gb/s": 1e9}
LONGEST = 30 * 24 * 3600.0  # seconds that a duration may have
MOST_VICTIMS = 256
NOT_ALL_HAVE = {"for": "how long it lasts", "to": "a rate"}  # parts that only some verbs have, and their meaning


@dataclass(frozen=True)
class Verb:
    has_target: bool  # strikes processes
    servers: bool = False  # strikes parameter servers too
    seconds: float | None = None  # default duration; None: the fault has no duration
    rate: float | None = None  # default bytes per second; None: the fault has no rate


VERBS = {
    "kill": Verb(has_target=True, servers=True),
    "stop": Verb(has_target=True, servers=True, seconds=8.0),
    "cut": Verb(has_target=True, seconds=5.0),
    "slow": Verb(has_target=True, seconds=5.0, rate=1e6),
    "fill-disk": Verb(has_target=False, seconds=5.0),
    "kill-coordinator": Verb(has_target=False),
}


@dataclass(frozen=True)
class Clause:
    """One kind of fault, and when."""

    text: str  # as the user wrote it
    verb: str  # a key of `VERBS`
    target: str = "worker"  # for verbs that strike processes: worker or server
    count: int = 1  # how many targets at once
    number: int | None = None  # strike only the target with this number
    every: float | None = None  # seconds; exactly one of `every`, `at` and `step` is given
    at: float | None = None  # seconds after the first generation formed
    step: int | None = None  # as soon as so many steps are applied
    seconds: float | None = None  # duration; None: the fault has no duration
    rate: float | None = None  # bytes per second of a slow link


def parse(text: str) -> tuple[Clause, ...]:
    """All clauses of a `--chaos` text; none for an empty one."""
    if not text.strip():
        return ()
    return tuple(_Reader(" ".join(part.split())).clause() for part in re.split(r"[;,]", text))


def doubts(clauses: Sequence[Clause], *, workers: int, servers: int = 0) -> tuple[str, ...]:
    """Warnings about clauses that are correct but may not be meant, for a job that starts with so many processes."""
    found = []
    for clause in clauses:
        there = workers if clause.target == "worker" else servers
        if clause.number is not None and clause.number >= there > 0:
            found.append(texts.nobody_yet(clause.text, clause.target, clause.number, there))
        elif there == 0:
            found.append(texts.no_servers(clause.text))
    return tuple(found)


class _Reader:
    """Reads one clause word by word."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._words = text.lower().split()
        self._place = 0

    def clause(self) -> Clause:
        name = self._take(" or ".join(VERBS))
        if name not in VERBS:
            raise self._wrong(name, nearest(name, tuple(VERBS)))
        verb = VERBS[name]
        target, count, number = self._target(verb) if verb.has_target else ("worker", 1, None)
        found: dict[str, float] = {}
        while self._place < len(self._words):
            self._part(name, found)
        times = [key for key in ("every", "at", "step") if key in found]
        if len(times) != 1:
            raise UsageError(texts.wrong_times(self._text, len(times)))
        return Clause(
            text=self._text,
            verb=name,
            target=target,
            count=count,
            number=number,
            every=found.get("every"),
            at=found.get("at"),
            step=int(found["step"]) if "step" in found else None,
            seconds=found.get("for", verb.seconds),
            rate=found.get("to", verb.rate),
        )

    def _target(self, verb: Verb) -> tuple[str, int, int | None]:
        """`worker`, `worker 2` or `2 workers`, and the same of servers."""
        nouns = {name + end: name for name in ("worker", *(("server",) if verb.servers else ())) for end in ("", "s")}
        word = self._take(texts.TARGET)
        if word.isascii() and word.isdigit():
            if not 1 <= int(word) <= MOST_VICTIMS:
                raise self._wrong(word, texts.wrong_count(MOST_VICTIMS))
            noun = self._take(texts.WORKERS)
            if noun not in nouns:
                raise self._wrong(noun, texts.wrong_nouns(dict.fromkeys(nouns.values())))
            return nouns[noun], int(word), None
        if word not in nouns:
            raise self._wrong(word, texts.wrong_target(dict.fromkeys(nouns.values())))
        if self._place < len(self._words) and self._words[self._place].isascii():
            number = self._words[self._place]
            if number.isdigit() and len(number) < 10:
                self._place += 1
                return nouns[word], 1, int(number)
        return nouns[word], 1, None

    def _part(self, name: str, found: dict[str, float]) -> None:
        verb = VERBS[name]
        allowed = ["every", "at", *(["for"] if verb.seconds is not None else []), *(["to"] if verb.rate else [])]
        key = self._take(" or ".join(allowed))
        if key not in allowed:
            raise self._wrong(key, self._why_not(key, name, allowed))
        if key == "at" and self._words[self._place : self._place + 1] == ["step"]:
            self._place += 1
            key, value = "step", self._step()
        elif key == "to":
            value = self._amount(BYTES, texts.RATE)
        else:
            value = self._amount(SECONDS, texts.TIME)
            if value > LONGEST:
                raise self._wrong(self._words[self._place - 1], texts.TOO_LONG)
        if key in found:
            raise self._wrong(key, texts.TWICE)
        found[key] = value

    def _why_not(self, key: str, name: str, allowed: list[str]) -> str:
        if key in ("and", "then", "&", *VERBS):
            return texts.JOIN
        lacking = texts.no_part(name, key, NOT_ALL_HAVE[key]) if key in NOT_ALL_HAVE else ""
        return texts.wrong_part(allowed, lacking=lacking)

    def _step(self) -> float:
        word = self._take(texts.STEPS)
        if not re.fullmatch(r"[0-9]{1,12}", word) or int(word) == 0:
            raise self._wrong(word, texts.NO_STEPS)
        return int(word)

    def _amount(self, units: dict[str, float], what: str) -> float:
        word = self._take(what)
        match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)([a-z/]+)", word)
        if match is None or match[2] not in units or float(match[1]) == 0:
            raise self._wrong(word, texts.should_be(what))
        return float(match[1]) * units[match[2]]

    def _take(self, expected: str) -> str:
        if self._place == len(self._words):
            raise UsageError(texts.too_short(self._text, expected))
        self._place += 1
        return self._words[self._place - 1]

    def _wrong(self, word: str, instead: str) -> UsageError:
        return UsageError(texts.wrong_word(word, self._text, instead))

"""What `--chaos` tells people about a text that it cannot read, or that may not be meant; tests refer to these texts.

Some functions make a whole message; the others say only what is expected in the place of a word (`instead`, `expected`)
and become part of `wrong_word` or `too_short`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

# Expected in a place

TARGET = "`worker` or `2 workers`"
WORKERS = "`workers`"
STEPS = "a number of steps"
RATE = "a rate such as 1MB/s"
TIME = "a time such as 15s, 500ms or 2min"

# In place of a word

TWICE = "it is said twice"
JOIN = "join clauses with `;`"
TOO_LONG = "it should be 30 days at most"
NO_STEPS = "it should be a number of steps such as 100"


def should_be(what: str) -> str:
    return f"it should be {what}"


def wrong_count(most: int) -> str:
    return f"it should be from 1 to {most}"


def wrong_nouns(nouns: Iterable[str]) -> str:
    return f"it should be {_either(f'{noun}s' for noun in nouns)}"


def wrong_target(nouns: Iterable[str]) -> str:
    return f"it should be {_either(nouns)}, `worker 2` or `2 workers`"


def wrong_part(allowed: Sequence[str], *, lacking: str = "") -> str:
    """`lacking`: that the verb does not have this part, from `no_part`."""
    return f"{lacking}there may be {', '.join(allowed)}"


def no_part(verb: str, part: str, meaning: str) -> str:
    return f"{verb} has no `{part}` ({meaning}); "


def _either(nouns: Iterable[str]) -> str:
    """'`worker` or `server`'."""
    return " or ".join(f"`{noun}`" for noun in nouns)


# Whole messages


def wrong_word(word: str, clause: str, instead: str) -> str:
    return f"--chaos: {word!r} in {clause!r}: {instead}"


def too_short(clause: str, expected: str) -> str:
    said = f"{clause!r} ends too early" if clause else "a clause is empty"
    return f"--chaos: {said}: there should be {expected}"


def wrong_times(clause: str, times: int) -> str:
    """`times`: how many times the clause names, not one."""
    return (
        f"--chaos: {clause!r} says {'nothing' if not times else 'more than once'} about when; "
        "it should have one of `every 15s`, `at 30s` and `at step 100`"
    )


def nobody_yet(clause: str, target: str, number: int, there: int) -> str:
    """`there`: how many of these the job starts with."""
    return (
        f"--chaos: {clause!r} strikes nobody until there is a {target} {number}: "
        f"the job starts with {f'{target} 0' if there == 1 else f'{target}s 0 to {there - 1}'}, "
        "and higher numbers are those of replacements"
    )


def no_servers(clause: str) -> str:
    return f"--chaos: {clause!r} strikes nobody: the job starts no servers itself (--servers 2)"

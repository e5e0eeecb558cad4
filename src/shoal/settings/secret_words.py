"""Settings that hold words NAME=VALUE, such as `--spark`, as a job's record and its workers see them: without secrets.

A value is a secret if its name says so, or if it sets something inside itself whose name says so, as options for Java
do (`-Dkey=...`). Pure. Not here: how a secret gets to the program that needs it.
"""

from __future__ import annotations

import re
import shlex

HIDDEN = "NOT-RECORDED"  # in place of a secret
TELLING = "secret|passw|passphrase|credential|key|token"  # in the name of a secret
NAME = re.compile(TELLING, re.IGNORECASE)
INSIDE = re.compile(rf"({TELLING})[\w.-]*=", re.IGNORECASE)


def without_secrets(text: str) -> str:
    """The same words, with a mark in place of each secret."""
    try:
        words = [word_without_secret(word) for word in shlex.split(text)]
    except ValueError:  # a quotation mark is missing: nobody knows where a secret ends
        found = INSIDE.search(text)
        return text if found is None else text[: found.end()] + HIDDEN
    return shlex.join(words) if HIDDEN in " ".join(words) else text


def missing_secrets(text: str) -> list[str]:
    """Names of the secrets in place of which there is a mark."""
    pairs = (word.partition("=") for word in shlex.split(text))
    return [name for name, _, value in pairs if value == HIDDEN]


def word_without_secret(word: str) -> str:
    """The same, for one word as `shlex.split` gives it."""
    name, _, value = word.partition("=")
    is_secret = bool(value) and bool(NAME.search(name) or INSIDE.search(value))
    return f"{name}={HIDDEN}" if is_secret else word

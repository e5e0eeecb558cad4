"""`--plaintext`: connections to other machines without TLS, and a warning that says so."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

from shoal.environment import in_plaintext

WARNING = (
    "shoal: warning: --plaintext: connections to other machines are not encrypted. Anybody on the network in "
    "between can read and change what they carry; use it only where you trust everybody there"
)


@contextlib.contextmanager
def spoken_plaintext(wanted: bool) -> Iterator[None]:
    """If `wanted`, this process and its children do not insist on TLS while the block runs."""
    if wanted:
        print(WARNING, file=sys.stderr, flush=True)
    with in_plaintext(wanted):
        yield

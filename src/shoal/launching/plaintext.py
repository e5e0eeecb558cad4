"""`--plaintext`: connections to other machines without TLS, and a warning that says so."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

from shoal.environment import in_plaintext

WARNING = (
    "shoal: warning: --plaintext: connections to other machines are not encrypted. Whoever is on the network in "
    "between can read and change what they carry; use it only where you trust everybody there"
)


@contextlib.contextmanager
def spoken_plaintext(wanted: bool) -> Iterator[None]:
    """While the block runs, this process and those that it starts do not insist on TLS, if that is wanted."""
    if wanted:
        print(WARNING, file=sys.stderr, flush=True)
    with in_plaintext(wanted):
        yield

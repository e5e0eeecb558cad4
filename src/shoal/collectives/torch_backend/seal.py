"""What a group's token is made of, and proof that what lies in torch's store was put there by a rank of the group.

torch's store asks nobody who they are: whoever reaches its port reads and writes what ranks tell each other there.
Where `SHOAL_TOKEN_FILE` names a file (under `shoal run` it does), the group's token is derived from the secret in that
file and never goes through the store, and everything that ranks put there carries a proof that its writer knows the
secret. Without a file rank 0 makes up a token and the store carries it. Pure, apart from reading the file.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from pathlib import Path

from shoal.environment import TOKEN_FILE, token_file
from shoal.errors import Refused, UsageError
from shoal.wire.token_file import TokenFileError, read_token

MARK = b"sealed by shoal|"  # how sealed words begin; others are random names and msgpack
PROOF_BYTES = 32


class Seal:
    def __init__(self, secret: str | None) -> None:
        """`secret`: what all ranks know and nobody else; None: there is none."""
        self._secret = None if secret is None else secret.encode()

    def close(self, key: str, data: bytes) -> bytes:
        """What goes into the store under that key."""
        return data if self._secret is None else MARK + self._proof(b"store", key, data) + data

    def open(self, key: str, found: bytes) -> bytes:
        """What a rank of the group has put there; `Refused` where another one has, or a stranger."""
        is_sealed = found.startswith(MARK)
        if self._secret is None:
            if is_sealed:
                raise Refused(
                    f"another rank has its token from a file and this one has none; set {TOKEN_FILE} on every rank to "
                    "a file with the same secret, or on none"
                )
            return found
        data = found[len(MARK) + PROOF_BYTES :]
        if not is_sealed or not hmac.compare_digest(
            found[len(MARK) : len(MARK) + PROOF_BYTES], self._proof(b"store", key, data)
        ):
            raise Refused(
                f"what lies in torch's store under {key} was not put there by a rank that knows the secret in "
                f"{token_file()}; set {TOKEN_FILE} on every rank to a file with the same secret. If that is so, "
                "somebody else writes into the store"
            )
        return data

    def token(self, meeting: str) -> str | None:
        """Of the group that meets under this name; None where the ranks have to tell each other."""
        return None if self._secret is None else self._proof(b"token", meeting, b"").hex()

    def _proof(self, use: bytes, name: str, data: bytes) -> bytes:
        assert self._secret is not None
        words = b"|".join((b"shoal torch group", use, name.encode(), data))  # names are ours and hold no |
        return hmac.new(self._secret, words, hashlib.sha256).digest()


def new_token() -> str:
    return secrets.token_hex(16)


def own_seal() -> Seal:
    """This process's."""
    path = token_file()
    if path is None:
        return Seal(None)
    try:
        return Seal(read_token(Path(path)))
    except TokenFileError as error:
        raise UsageError(
            f"{TOKEN_FILE} names {path}, which {error}; let it name a file with a secret, the same on every rank, or "
            "leave it out"
        ) from None

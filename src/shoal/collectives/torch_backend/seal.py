"""Where a group's token comes from, and proof that an entry in torch's store was written by a rank of the group.

torch's store authenticates nobody: any process that reaches its port can read and write the ranks' entries. If
`SHOAL_TOKEN_FILE` names a file (under `shoal run` it does), the group's token is derived from the secret in that file
and never goes through the store, and every entry of a rank carries a proof that its writer knows the secret. Without a
file, rank 0 makes a token and the store carries it. Pure, apart from reading the file.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from pathlib import Path

from shoal.collectives import texts
from shoal.environment import TOKEN_FILE, token_file
from shoal.errors import Refused, UsageError
from shoal.wire.token_file import TokenFileError, read_token

MARK = b"sealed by shoal|"  # how sealed entries begin; unsealed ones are random names and msgpack
PROOF_BYTES = 32


class Seal:
    def __init__(self, secret: str | None) -> None:
        """`secret`: known to all ranks and to nobody else; None: there is none."""
        self._secret = None if secret is None else secret.encode()

    def close(self, key: str, data: bytes) -> bytes:
        """The entry to store under that key."""
        return data if self._secret is None else MARK + self._proof(b"store", key, data) + data

    def open(self, key: str, found: bytes) -> bytes:
        """The data of an entry that a rank of the group wrote. Raises `Refused` if a stranger wrote it."""
        is_sealed = found.startswith(MARK)
        if self._secret is None:
            if is_sealed:
                raise Refused(texts.only_others_have_token(TOKEN_FILE))
            return found
        data = found[len(MARK) + PROOF_BYTES :]
        if not is_sealed or not hmac.compare_digest(
            found[len(MARK) : len(MARK) + PROOF_BYTES], self._proof(b"store", key, data)
        ):
            raise Refused(texts.foreign_entry(key, token_file(), TOKEN_FILE))
        return data

    def token(self, meeting: str) -> str | None:
        """The token of the group that meets under this name; None if it has to go through the store."""
        return None if self._secret is None else self._proof(b"token", meeting, b"").hex()

    def _proof(self, use: bytes, name: str, data: bytes) -> bytes:
        assert self._secret is not None
        words = b"|".join((b"shoal torch group", use, name.encode(), data))  # names are ours and hold no |
        return hmac.new(self._secret, words, hashlib.sha256).digest()


def new_token() -> str:
    return secrets.token_hex(16)


def own_seal() -> Seal:
    """This process's seal."""
    path = token_file()
    if path is None:
        return Seal(None)
    try:
        return Seal(read_token(Path(path)))
    except TokenFileError as error:
        raise UsageError(texts.bad_token_file(TOKEN_FILE, path, error)) from None

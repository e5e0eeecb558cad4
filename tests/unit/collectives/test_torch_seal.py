"""What ranks put into torch's store: known as their own by those with the same secret, and by nobody else."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as some

from shoal.collectives.torch_backend.seal import MARK, PROOF_BYTES, Seal, own_seal
from shoal.errors import Refused, UsageError

words = some.binary(max_size=200)
names = some.text("abcdef0123456789/", max_size=20)


@given(secret=some.text(min_size=1), key=names, data=words)
def test_what_is_sealed_is_opened_by_the_same_secret(secret: str, key: str, data: bytes) -> None:
    sealed = Seal(secret).close(key, data)
    assert Seal(secret).open(key, sealed) == data
    with pytest.raises(Refused, match="SHOAL_TOKEN_FILE"):
        Seal(secret + "x").open(key, sealed)
    with pytest.raises(Refused, match="SHOAL_TOKEN_FILE"):
        Seal(None).open(key, sealed)
    with pytest.raises(Refused):
        Seal(secret).open(key + "/1", sealed)  # a stranger may copy it to another place


@given(data=words, at=some.integers(0), bit=some.integers(0, 7))
def test_no_bit_can_be_changed(data: bytes, at: int, bit: int) -> None:
    sealed = bytearray(Seal("secret").close("leader", data))
    sealed[at % len(sealed)] ^= 1 << bit
    with pytest.raises(Refused):
        Seal("secret").open("leader", bytes(sealed))


@given(stranger=words | some.binary(max_size=2 * PROOF_BYTES).map(lambda more: MARK + more))
def test_whatever_a_stranger_puts_there_is_refused(stranger: bytes) -> None:
    with pytest.raises(Refused):
        Seal("secret").open("leader", stranger)


@given(data=words)
def test_without_a_secret_words_are_as_they_are(data: bytes) -> None:
    assume(not data.startswith(MARK))
    assert Seal(None).close("leader", data) == data == Seal(None).open("leader", data)
    assert Seal(None).token("meeting") is None


def test_every_meeting_has_a_token_of_its_own() -> None:
    assert Seal("one").token("a") == Seal("one").token("a")
    assert len({Seal(secret).token(name) for secret in ("one", "two") for name in ("a", "b")}) == 4


def test_a_secret_that_others_can_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_TOKEN_FILE", str(tmp_path / "token"))
    (tmp_path / "token").write_text("secret")
    (tmp_path / "token").chmod(0o640)
    with pytest.raises(UsageError, match=r"SHOAL_TOKEN_FILE names .*chmod 600"):
        own_seal()
    (tmp_path / "token").chmod(0o600)
    own_seal()

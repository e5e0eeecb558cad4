"""Ranks that meet through torch's store: who is missing is named, and what strangers put there is no crash."""

from __future__ import annotations

from datetime import timedelta

import pytest
from torch.distributed import DistBackendError, HashStore

from shoal.collectives.torch_backend.rendezvous import Meeting
from shoal.errors import WireError


class Late(HashStore):
    """A store on a busy machine: the second look at what is there comes too late."""

    looks = 0

    def wait(self, keys: list[str], _limit: timedelta) -> None:  # type: ignore[override]  # the form that is used
        self.looks += 1
        if self.looks > 1:
            raise RuntimeError("timed out after 1ms")


def test_a_rank_that_looked_too_late_names_who_never_came_and_not_who_is_there() -> None:
    store = Late()
    store.set("leader", "a meeting")
    with pytest.raises(DistBackendError, match="rank 2 of 3 waited 1 s for rank 1 to join"):
        Meeting(store, 2, 3, timeout=1.0)


@pytest.mark.parametrize("words", [b"", b"\xff\xfe", b"\x81\xa5nonce\x01", b"\xc1" * 100])
def test_what_a_stranger_put_there_is_told_as_such(words: bytes) -> None:
    store = HashStore()
    store.set("leader", b"\xff\x00")  # type: ignore[arg-type]  # torch's stub knows text only
    name = b"\xff\x00".decode("ascii", "replace")
    store.set(f"{name}/all", words)  # type: ignore[arg-type]  # torch's stub knows text only
    with pytest.raises(WireError, match="in torch's store are no Opening"):
        Meeting(store, 1, 2, timeout=60.0)

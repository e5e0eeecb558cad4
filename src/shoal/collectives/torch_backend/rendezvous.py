"""How the ranks of a torch process group find each other through torch's store, before they are connected.

A store may hold keys of an earlier attempt: of a group that was destroyed, or of processes that died while they met. So
rank 0 opens each meeting under a new random name, and a rank takes part only in a meeting whose list of members holds
the nonce that the rank has just made. Afterwards the ranks exchange bytes under that name. Not here: what they exchange
(`group_making`), who may put something into the store (`seal`), and the connections.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import time
from datetime import timedelta
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta
from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed import DistBackendError, DistNetworkError

from shoal.bounds import MOST_MEMBERS, Name, Ordinal
from shoal.collectives import texts
from shoal.collectives.torch_backend.seal import new_token, own_seal
from shoal.errors import WireError

SHORTEST_PAUSE, LONGEST_PAUSE = 0.001, 0.05  # seconds between two checks whether the meeting was opened
LEADER = "leader"

Said = TypeVar("Said")


class Attendant(msgspec.Struct, frozen=True):
    """A rank that comes to a meeting."""

    nonce: Name  # random, new for this attempt
    host: Name  # for people: the machine's name
    process: Ordinal  # on that machine

    @property
    def words(self) -> str:
        return f"process {self.process} on {self.host}"


class _Opening(msgspec.Struct, frozen=True):
    """What rank 0 says when all ranks are there."""

    attendants: Annotated[list[Attendant], Meta(max_length=MOST_MEMBERS)]  # by rank
    token: Name  # proves membership on every connection of the group; empty if ranks derive it from a file


class Meeting:
    """One rank's part in one meeting of a group."""

    def __init__(self, store: Store, rank: int, size: int, timeout: float) -> None:
        """Returns when all ranks are there. `timeout`: seconds for everything until `close`."""
        self.rank, self.size = rank, size
        self._store = store
        self._timeout = timeout
        self._deadline = time.monotonic() + timeout
        self._round = 0  # of the next exchange
        self._keys: list[str] = []  # keys that this rank has set and not deleted
        self._name = ""
        self._seal = own_seal()
        self._own = Attendant(secrets.token_hex(8), socket.gethostname(), os.getpid())
        opening = self._open() if rank == 0 else self._join()
        self.token = self._seal.token(self._name) or opening.token
        self.attendants = opening.attendants

    def exchange(self, data: bytes) -> list[bytes]:
        """Every rank's bytes, by rank. All ranks make the same exchanges in the same order."""
        keys = [f"{self._name}/{self._round}/{rank}" for rank in range(self.size)]
        self._round += 1
        self._set(keys[self.rank], data)
        return self._get_all(keys)

    def close(self) -> None:
        """Remove this meeting from the store, once all ranks are known to have read everything."""
        with contextlib.suppress(RuntimeError):  # some stores cannot delete: a few bytes stay
            for key in self._keys:
                self._store.delete_key(key)
        self._keys.clear()

    def _open(self) -> _Opening:
        self._name = secrets.token_hex(8)
        self._set(LEADER, self._name.encode())
        others = self._get_all([f"{self._name}/{rank}" for rank in range(1, self.size)])
        attendants = [self._own, *(_decode(data, Attendant) for data in others)]
        opening = _Opening(attendants, token="" if self._seal.token(self._name) else new_token())
        self._set(f"{self._name}/all", msgspec.msgpack.encode(opening))
        return opening

    def _join(self) -> _Opening:
        pause = SHORTEST_PAUSE
        while True:
            name = self._get_all([LEADER])[0].decode("ascii", "replace")
            if name != self._name:
                self._name = name
                self._set(f"{name}/{self.rank}", msgspec.msgpack.encode(self._own))
            # Poll instead of waiting: rank 0 may open another meeting instead.
            if self._store.check([f"{name}/all"]):
                opening = _decode(self._get_all([f"{name}/all"])[0], _Opening)
                if len(opening.attendants) == self.size and opening.attendants[self.rank] == self._own:
                    return opening
            if time.monotonic() >= self._deadline:
                raise self._too_late([f"{name}/{rank}" for rank in range(1, self.size)])
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def _set(self, key: str, data: bytes) -> None:
        self._store.set(key, self._seal.close(key, data))  # type: ignore[arg-type]  # torch's stub knows text only; bytes are taken as well
        if key not in self._keys:
            self._keys.append(key)

    def _get_all(self, keys: list[str]) -> list[bytes]:
        """The values of keys, as soon as all are set. Keys end with the rank that sets them."""
        if not keys:
            return []
        left = timedelta(seconds=max(0.001, self._deadline - time.monotonic()))
        try:
            self._store.wait(keys, left)
            found = self._store.multi_get(keys)
        except DistNetworkError as error:
            raise DistBackendError(texts.store_lost(self.rank, self.size, error)) from error
        except RuntimeError:  # stores differ in what they raise when the time is over
            raise self._too_late(keys) from None
        return [self._seal.open(key, data) for key, data in zip(keys, found, strict=True)]

    def _too_late(self, keys: list[str]) -> DistBackendError:
        names = self._not_there(keys)
        if not names and self._name:  # all keys are there by now, but too late: blame the ranks that never came
            names = self._not_there([f"{self._name}/{rank}" for rank in range(1, self.size)])
        missing = ", ".join(names).replace(LEADER, "0") or "0"
        return DistBackendError(texts.rank_missing(self.rank, self.size, missing, self._timeout))

    def _not_there(self, keys: list[str]) -> list[str]:
        """The ranks that have not set their keys."""
        return [key.rpartition("/")[2] for key in keys if not self._store.check([key])]


def _decode(data: bytes, kind: type[Said]) -> Said:
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except msgspec.MsgspecError as error:
        raise WireError(f"{len(data)} bytes in torch's store are no {kind.__name__.strip('_')}: {error}") from None


def prefixed(store: Store) -> Store:
    """The part of a store that only this backend uses."""
    return PrefixStore("shoal", store)

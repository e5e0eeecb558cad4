"""What the launcher and the keeper of its room tell each other: lines of JSON, checked before use."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from shoal.bounds import ExitCode, Name, Ordinal
from shoal.values import Address

MOST_RESOURCES = 100
LONGEST_LINE = 1024 * 1024  # bytes
MOST_LINES, LONGEST_WORDS = 20, 2000  # of what an agent or Ray has said: lines, and characters of each

Text = Annotated[str, Meta(max_length=64 * 1024)]


class RoomWish(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The first line to the keeper: which room to ask for."""

    cluster: Name  # address; empty: start a cluster on this machine
    bundle: Annotated[
        dict[Name, float], Meta(max_length=MOST_RESOURCES)
    ]  # what each worker gets, in Ray's names: CPU, GPU, memory in bytes, and others
    fewest: Ordinal  # workers that get room together, before the job starts
    most: Ordinal  # the others get room whenever there is some
    wait: float  # seconds until there must be room for the first ones


class OpenRoom(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The second line: where agents find the launcher. Holds a secret."""

    address: Address
    token: Name


class ClusterReached(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The keeper has reached the cluster."""


class RoomReserved(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """There is room for the first workers."""


class AgentBegan(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """An agent was started on a node."""

    node: Name
    is_first: bool  # this agent is in the room reserved for the first workers


class AgentEnded(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """An agent has ended, or its node is gone."""

    node: Name
    code: ExitCode | None  # None: Ray lost it
    lines: Annotated[
        tuple[Text, ...], Meta(max_length=MOST_LINES)
    ]  # the last ones that it printed, or what Ray says about its end


class KeeperFailed(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The keeper gives up."""

    text: Text  # one line for the user


KeeperMessage = ClusterReached | RoomReserved | AgentBegan | AgentEnded | KeeperFailed
decode_room = msgspec.json.Decoder(RoomWish).decode
decode_open = msgspec.json.Decoder(OpenRoom).decode
decode_keepers = msgspec.json.Decoder(KeeperMessage).decode


def line_of(message: RoomWish | OpenRoom | KeeperMessage) -> bytes:
    return msgspec.json.encode(message) + b"\n"


def shortened(lines: list[str]) -> tuple[str, ...]:
    return tuple(line[:LONGEST_WORDS] for line in lines[-MOST_LINES:])

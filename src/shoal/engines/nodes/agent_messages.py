"""What a launcher and the agents on its nodes say to each other: typed messages with bounds, and their bytes.

An agent begins with `Hello`. Then the launcher has it look at the script's folder, sends what is missing there, and
starts processes. Bytes are either one of these messages or a `WireError`. Not here: the connection (`agent_line`).
"""

from __future__ import annotations

from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from shoal.bounds import ExitCode, Items, Members, Name, Ordinal, OrdinalOrNone, Text
from shoal.errors import WireError
from shoal.wire.message_frames import framed

MOST_BYTES = 8 * 1024 * 1024  # of one message
MOST_FILES = 2000  # Python files of a script's folder
MOST_FOLDER_BYTES = 64 * 1024 * 1024  # of these files together
PIECE_BYTES = 1024 * 1024  # of a file in one message
INPUT_BYTES = 4 * 1024 * 1024 + 4096  # what a process is sent once
BROUGHT_BYTES = 4 * 1024 * 1024  # of a private file, such as a token or a pickled function
PRINTED_BYTES = 4 * 1024 * 1024  # of output in one message
DIGEST_BYTES = 32

Digest = Annotated[bytes, Meta(min_length=DIGEST_BYTES, max_length=DIGEST_BYTES)]
Files = Annotated[tuple["SeenFile", ...], Meta(max_length=MOST_FILES)]


class NodeMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """Base of all messages between a launcher and its agents."""


class SeenFile(msgspec.Struct, frozen=True):
    """One file of a script's folder."""

    path: Name  # relative to the folder, with /
    digest: Digest  # SHA-256 of its bytes


# From an agent


class Versions(msgspec.Struct, frozen=True):
    python: Name
    torch: Name  # empty: not installed
    shoal: Name


class Hello(NodeMessage, frozen=True, tag="hello"):
    """An agent's first message."""

    node: Name  # as its provider names it
    host: Name  # the machine's own name
    versions: Versions
    slots: Ordinal  # workers that it takes; each worker tells what it runs on by itself


class FolderSeen(NodeMessage, frozen=True, tag="folder-seen"):
    """The answer to `LookAt`."""

    is_there: bool
    files: Files = ()
    sees_probe: bool = False  # so that both machines share the file system on which it lies


class FolderReady(NodeMessage, frozen=True, tag="folder-ready"):
    """The answer to `Settle`, or to the last piece of a copy: processes can be started."""


class FolderFailed(NodeMessage, frozen=True, tag="folder-failed"):
    """The script's folder could not be looked at or copied."""

    reason: Text


class PrintedThere(NodeMessage, frozen=True, tag="printed"):
    name: Name
    data: Annotated[bytes, Meta(max_length=PRINTED_BYTES)]


class ExitedThere(NodeMessage, frozen=True, tag="exited"):
    name: Name
    code: ExitCode


class WorkingThere(NodeMessage, frozen=True, tag="working"):
    name: Name


class NotStarted(NodeMessage, frozen=True, tag="not-started"):
    """A process could not be started, or what it needs could not be written."""

    name: Name
    reason: Text


class Warned(NodeMessage, frozen=True, tag="warned"):
    """The agent got SIGTERM: whoever lends the nodes takes all of them away soon."""


# From the launcher


class LookAt(NodeMessage, frozen=True, tag="look-at"):
    """Which Python files are in this folder?"""

    folder: Name
    script: Name  # relative to the folder; it counts whatever its name is
    probe: Name = ""  # a file of the launcher's: is it there? empty: nobody asks


class Settle(NodeMessage, frozen=True, tag="settle"):
    """Processes run in `folder`, where everything is as the launcher has it."""

    folder: Name
    script: Name
    work_in: Name  # the launcher's working folder: the processes' too, where it exists


class CopyFolder(NodeMessage, frozen=True, tag="copy"):
    """Processes run in a private copy. It takes what fits from `folder`; pieces with all other files follow."""

    folder: Name
    script: Name
    files: Files
    missing: Annotated[tuple[Name, ...], Meta(max_length=MOST_FILES)]  # paths of those that follow, in this order


class FilePiece(NodeMessage, frozen=True, tag="piece"):
    """The next bytes of a file that follows a `CopyFolder`."""

    path: Name
    data: Annotated[bytes, Meta(max_length=PIECE_BYTES)]
    is_last: bool  # of this file


class CarriedFile(msgspec.Struct, frozen=True):
    """A private file, with its bytes."""

    variable: Name  # that tells the process its path
    data: Annotated[bytes, Meta(max_length=BROUGHT_BYTES)]


class Start(NodeMessage, frozen=True, tag="start"):
    name: Name
    command: Items[Text]
    is_python: bool  # the first word is the launcher's interpreter: the agent takes its own
    script_at: OrdinalOrNone  # index of the script in the command: the agent puts its own path there; -1: none
    variables: Annotated[dict[Name, Text], Meta(max_length=4096)]
    files: Members[CarriedFile] = ()
    takes_input: bool = False
    outlives_launcher: float = 0.0


class Input(NodeMessage, frozen=True, tag="input"):
    name: Name
    data: Annotated[bytes, Meta(max_length=INPUT_BYTES)]


class SendSignal(NodeMessage, frozen=True, tag="signal"):
    names: Members[Name]
    number: Annotated[int, Meta(ge=1, le=64)]


class Depart(NodeMessage, frozen=True, tag="leave"):
    """End all processes, remove everything, and close the connection."""


AgentMessage = (
    Hello | FolderSeen | FolderReady | FolderFailed | PrintedThere | ExitedThere | WorkingThere | NotStarted | Warned
)
LauncherMessage = LookAt | Settle | CopyFolder | FilePiece | Start | Input | SendSignal | Depart

AnyMessage = TypeVar("AnyMessage")
_encoder = msgspec.msgpack.Encoder()
_agent_decoder: msgspec.msgpack.Decoder[AgentMessage] = msgspec.msgpack.Decoder(AgentMessage)
_launcher_decoder: msgspec.msgpack.Decoder[LauncherMessage] = msgspec.msgpack.Decoder(LauncherMessage)


def encode(message: NodeMessage) -> bytes:
    """The message with its length before it."""
    return framed(_encoder.encode(message), MOST_BYTES, type(message).__name__)


def decode_agents(body: bytes) -> AgentMessage:
    return _decoded(_agent_decoder, body)


def decode_launchers(body: bytes) -> LauncherMessage:
    return _decoded(_launcher_decoder, body)


def _decoded(decoder: msgspec.msgpack.Decoder[AnyMessage], body: bytes) -> AnyMessage:
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"not a message between a launcher and an agent: {error}") from None

"""The calls of this worker's script, and whether they are those of the job.

A script that goes through what the others have passed knows their calls: a newcomer that is in no generation yet is
told of them by the coordinator, a member that starts again from the top gets them with the state. Each of its own calls
is compared before anything depends on it. Not here: what a call says (`call_terms`).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

import msgspec
import torch

from shoal.bounds import ItemList
from shoal.checkpoint.peer_copy import broadcast_bytes
from shoal.data.texts import data_differ
from shoal.errors import TermsDiffer, UsageError, WireError, WorkersDisagree
from shoal.strategies.peers.peers import Peers
from shoal.terms import MOST_CALLS, Made, SampleHashes, ScriptCall, combined, difference, named
from shoal.training.script import texts
from shoal.training.script.call_results import decode_result, encode_result
from shoal.training.script.call_terms import DATA_TERMS
from shoal.training.script.texts import ADVICE

MOST_BYTES = 64 * 1024 * 1024  # of calls that come with a state
_decoder: msgspec.msgpack.Decoder[list[ScriptCall]] = msgspec.msgpack.Decoder(ItemList[ScriptCall])


class ScriptCalls:
    """Calls since the script last began from the top. The first `MOST_CALLS` are kept and compared."""

    def __init__(self, peers: Peers) -> None:
        self.count = 0
        self.digest = b""  # of all of them
        self._peers = peers
        self.own: list[ScriptCall] = []
        self._job: list[ScriptCall] = []  # the others', as far as this worker knows them; empty: it is where they are
        self._results: dict[int, bytes] = {}  # by index: results of the job's calls

    def make(self, what: str, terms: Iterable[tuple[str, object]] = (), samples: SampleHashes = ()) -> None:
        """The script makes a call. Raises TermsDiffer where the others' scripts made another one here."""
        call = ScriptCall.of(what, terms, samples)
        self.count += 1
        self.digest = combined(self.digest, call)
        if self.count > MOST_CALLS:
            return
        self.own.append(call)
        self._compare(self.count - 1)
        self._peers.call_made(self.count - 1, Made(call))

    def gave(self, result: Any) -> None:
        """The last call gave this result, the same on every worker."""
        if self.count <= MOST_CALLS:
            self._peers.call_made(self.count - 1, Made(self.own[-1], encode_result(result)))

    # What is known of the others' scripts

    @property
    def seen(self) -> int:
        return len(self._job)

    @property
    def is_ahead(self) -> bool:
        """The others' scripts have not made the call that this one waits in, as far as this worker knows."""
        return len(self.own) > len(self._job)

    def is_over(self, *, gives: bool) -> bool:
        """Whether the others have passed the last call, and its result is known where it `gives` one."""
        index = self.count - 1
        return index < len(self._job) - 1 and (not gives or index in self._results)

    @property
    def result(self) -> Any:
        """What the last call gave the others."""
        return decode_result(self._results[self.count - 1])

    def learn(self, first: int, calls: Sequence[Made]) -> None:
        """Take in calls of the others, from index `first` on. Raises TermsDiffer."""
        if first > len(self._job):
            raise WireError(f"calls from index {first} on follow {len(self._job)} calls of the job")
        self._job[first : first + len(calls)] = [made.call for made in calls]
        self._results |= {first + place: made.result for place, made in enumerate(calls) if made.result is not None}
        self._compare(first)

    def learn_all(self, calls: Iterable[ScriptCall]) -> None:
        """Take in all calls that the others have made; they came with the state. Raises TermsDiffer."""
        self._job = list(calls)
        self._compare(0)

    def arrive(self) -> None:
        """The script is where the others are. Raises TermsDiffer where it has made fewer calls on the way."""
        if self.count < len(self._job):
            self._differ(texts.fewer_calls_here(self.count, named(self._job, self.count)))
        self._job = []

    def end(self) -> None:
        """The script has come to its end. Raises TermsDiffer where the others' did not."""
        if self.count < len(self._job):
            self._differ(texts.fewer_calls(self.count, named(self._job, self.count)))

    def _compare(self, start: int) -> None:
        found = difference(self._job, self.own, start)
        if found is not None:
            advice = texts.DATA_ADVICE if found.term in DATA_TERMS else ADVICE
            self._differ(found.text("in the job", "in this worker's script"), advice)

    def _differ(self, text: str, advice: str = ADVICE) -> NoReturn:
        raise TermsDiffer(f"{text}; {advice}")


def disagreement(script: ScriptCalls, peers: Peers) -> WorkersDisagree | UsageError:
    """Called by all members where their scripts differ: the first difference, in the same words on every worker.

    A UsageError where they were given different data.
    """
    group = peers.group
    mine = torch.frombuffer(bytearray(script.digest), dtype=torch.uint8)
    digests = [torch.empty_like(mine) for _ in range(group.size)]
    group.all_gather(digests, mine, label="digest of the script's calls").wait()
    other = next((rank for rank, digest in enumerate(digests) if not torch.equal(digest, digests[0])), 0)
    own = encode_calls(script.own).numpy().tobytes()
    first, second = (
        decode_calls(torch.frombuffer(bytearray(broadcast_bytes(own, rank, group, label="calls")), dtype=torch.uint8))
        for rank in (0, other)
    )
    one, two = (f"worker {peers.generation.members[rank].worker}" for rank in (0, other))
    found = difference(first, second)
    if found is not None:
        text = found.text(f"on {one}", f"on {two}")
        if found.term in DATA_TERMS:
            return UsageError(data_differ(text))
    elif len(first) != len(second):
        text = texts.calls_counted(one, two, len(first), len(second))
    else:
        text = texts.calls_differ(one, two, MOST_CALLS)
    return WorkersDisagree(
        f"{text}; start every worker with the same script and arguments, and let no such value depend on run.rank"
    )


def encode_calls(calls: Iterable[ScriptCall]) -> torch.Tensor:
    """As a tensor of bytes, which a state may hold."""
    data = zlib.compress(msgspec.msgpack.encode(list(calls)), 1)
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def decode_calls(data: torch.Tensor) -> list[ScriptCall]:
    try:
        return _decoder.decode(zlib.decompressobj().decompress(data.numpy().tobytes(), MOST_BYTES))
    except (zlib.error, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise WireError(f"the calls that came with the state cannot be read: {error}") from None

"""The terms of a script's calls of `run`, as text, and the first difference between two scripts. Pure.

Every worker runs the same script, so calls outside iterations come in the same order with the same terms. A newcomer
compares its calls with those of the job's members before it is let in; the first workers compare theirs with each other
when a loop starts. Also here: which call of `run` an operation belongs to, by its label, and what to tell two workers
that are in different ones. Not here: the terms of each call (`training.script.call_terms`), sending calls
(`wire.messages`).
"""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Annotated, NamedTuple, Self

import msgspec
from msgspec import Meta

from shoal.bounds import Count, Items, Name, Whole
from shoal.errors import WireError

Terms = Items[tuple[Name, Name]]  # names and values, in an order of their own
SampleHashes = Annotated[tuple[tuple[Count, Whole], ...], Meta(max_length=16)]  # index and hash

LONGEST_TEXT = 200  # characters of a name or a value; a longer one becomes its beginning and a digest
MOST_PACKED = 256 * 1024  # bytes of one call's terms as they travel: tens of thousands of tensors
MOST_RESULT = 1024 * 1024  # bytes of one result; `training.script.call_results` uses much less
DIGEST_BYTES = 16
SAMPLE = "sample"  # the term of a difference between samples
HASH_MASK = 2**64 - 1
MOST_UNPACKED = 32 * 1024 * 1024
MOST_CALLS = 20_000  # of a script that are kept and compared
CHUNK_BYTES = 1024 * 1024  # of calls in one message, about
# Beginnings of the labels of operations, and the calls of `run` that they belong to.
_CALLS = (
    (re.compile(r"(step \d+, )?evaluation, (call|meeting) \d+"), "run.evaluate"),
    (re.compile(r"(step \d+, )?mean, (call|meeting) \d+"), "run.mean"),
    (re.compile(r"saving( after step \d+| '[^']*')?(,|$)"), "run.save"),
    (re.compile(r"((digest|listing|weights) of )?model \d+"), "run.model"),
    (re.compile(r"(start of|resuming) loop \d+"), "run.batches"),
    (re.compile(r"start of epoch \d+"), "run.epochs"),
)
RESULTS = frozenset(("run.evaluate", "run.mean", "run.save"))  # calls that people put under `if run.is_first`
_decoder: msgspec.msgpack.Decoder[Terms] = msgspec.msgpack.Decoder(Terms)


class ScriptCall(msgspec.Struct, frozen=True, array_like=True):
    """One call. Two calls are alike if `what` and `digest` are equal, and the samples that both know; the terms show
    how calls differ.
    """

    what: Name  # model, optimizer, kept objects, epoch, loop, mean, evaluation, checkpoint
    digest: Annotated[bytes, Meta(max_length=DIGEST_BYTES)]  # of the terms
    packed: Annotated[bytes, Meta(max_length=MOST_PACKED)]  # the terms, compressed; empty if that exceeds the limit
    samples: SampleHashes = ()  # of the call's data: those that this worker could hash; not in the digest

    @classmethod
    def of(cls, what: str, terms: Iterable[tuple[str, object]] = (), samples: SampleHashes = ()) -> Self:
        plain = tuple((_clipped(name), _clipped(str(value))) for name, value in terms)
        data = msgspec.msgpack.encode(plain)
        packed = zlib.compress(data)
        travels = len(packed) <= MOST_PACKED and len(data) <= MOST_UNPACKED
        return cls(what, _digest(data), packed if travels else b"", samples)

    def is_like(self, other: ScriptCall) -> bool:
        return (self.what, self.digest) == (other.what, other.digest) and self.other_sample(other) is None

    def other_sample(self, other: ScriptCall) -> int | None:
        """The index of a sample that both scripts could hash, and that differs."""
        return changed_sample(self.samples, other.samples)

    @property
    def terms(self) -> Terms | None:
        """None if the terms were too long to send. Raises WireError for bytes that are no terms."""
        if not self.packed:
            return None
        try:
            unpacking = zlib.decompressobj()
            data = unpacking.decompress(self.packed, MOST_UNPACKED)
            return _decoder.decode(data)
        except (zlib.error, msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise WireError(f"the terms of a call ({self.what!r}) cannot be read: {error}") from None


class Made(msgspec.Struct, frozen=True, array_like=True):
    """A call that the members' scripts have made, with its result."""

    call: ScriptCall
    # Encoded; None: the call has no result, is under way, or its result is too long to send in this way.
    result: Annotated[bytes, Meta(max_length=MOST_RESULT)] | None = None

    @property
    def size(self) -> int:
        """Bytes, about."""
        return len(self.call.packed) + len(self.result or b"") + 64


class Difference(msgspec.Struct, frozen=True):
    subject: str  # "loop 2: batch size"
    first: str  # the value in the first of two scripts
    second: str
    term: str = ""  # the name of the term that differs, where one does

    def text(self, first: str, second: str) -> str:
        """`first` and `second` say where each value is: "in the job", "on worker 3"."""
        return f"{self.subject} is {self.first} {first} and {self.second} {second}"


def difference(first: Sequence[ScriptCall], second: Sequence[ScriptCall], start: int = 0) -> Difference | None:
    """The first difference between calls that both scripts have made, from index `start` on."""
    for index in range(start, min(len(first), len(second))):
        if not first[index].is_like(second[index]):
            return _difference(first, second, index)
    return None


def _difference(first: Sequence[ScriptCall], second: Sequence[ScriptCall], index: int) -> Difference:
    one, other = first[index], second[index]
    if one.what != other.what:
        return Difference(f"call {index + 1} of the script", named(first, index), named(second, index))
    where = named(first, index)
    if one.digest == other.digest and (sample := one.other_sample(other)) is not None:
        return _sample_difference(where, sample, dict(one.samples)[sample], dict(other.samples)[sample])
    terms, others = one.terms, other.terms
    if terms is None or others is None:
        return Difference(f"{where}: the digest of its terms", one.digest.hex(), other.digest.hex())
    for left, right in zip_longest(terms, others):
        if left == right:
            continue
        if left is not None and right is not None and left[0] == right[0]:
            return Difference(f"{where}: {left[0]}", left[1], right[1], left[0])
        return Difference(f"{where}: what comes first that differs", _text(left), _text(right))
    raise WireError(f"the digests of {where} differ and its terms do not: the digest does not belong to the terms")


def changed_sample(then: SampleHashes, now: SampleHashes) -> int | None:
    """The index of the first sample that is in both and differs."""
    known = dict(then)
    return min((index for index, number in now if known.get(index, number) != number), default=None)


def _sample_difference(where: str, index: int, first: int, second: int) -> Difference:
    one, other = (f"one with hash {number & HASH_MASK:016x}" for number in (first, second))
    return Difference(f"{where}: sample {index} of the data", one, other, SAMPLE)


def named(calls: Sequence[ScriptCall], index: int) -> str:
    """A call's name for people: its kind, and its number among calls of that kind."""
    what = calls[index].what
    return f"{what} {sum(call.what == what for call in calls[: index + 1])}"


def chunk(calls: Sequence[Made], start: int) -> tuple[Made, ...]:
    """As many of the calls from `start` on as fit into one message, but at least one if there is one."""
    size, stop = 0, start
    while stop < len(calls) and (stop == start or size + calls[stop].size <= CHUNK_BYTES):
        size += calls[stop].size
        stop += 1
    return tuple(calls[start:stop])


def combined(digest: bytes, call: ScriptCall) -> bytes:
    """The digest of a script's calls so far, with one more."""
    return _digest(digest + call.what.encode() + call.digest)


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()


def _clipped(text: str) -> str:
    plain = text.encode("utf-8", "backslashreplace")
    if len(text) <= LONGEST_TEXT:
        return plain.decode()
    return f"{plain.decode()[:LONGEST_TEXT]}... ({len(text)} characters, digest {_digest(plain).hex()[:12]})"


def _text(term: tuple[str, str] | None) -> str:
    return "nothing more" if term is None else f"{term[0]} {term[1]}"


# Calls that do not fit together


def call_in(label: str) -> str:
    """The call of `run` that an operation with this label belongs to; empty: none, such as a step's gradients."""
    return next((call for pattern, call in _CALLS if pattern.match(label)), "")


def calls_apart(first: tuple[int, str], second: tuple[int, str]) -> str | None:
    """What to tell where two workers, each with the label of its operation, are in different calls of the script.

    The text is the same on both workers. None: neither is in such a call, or both are in the same one.
    """
    (one, label), (other, other_label) = sorted((first, second))
    call, other_call = call_in(label), call_in(other_label)
    if call == other_call:
        if (skipped := _skipped((one, label), (other, other_label))) is None:
            return None
        step, missed, by = skipped
        return (
            f"worker {missed} took no backward() in step {step} and worker {by} did; skip a batch on every worker or "
            "on none: decide by a value that all workers share, such as run.mean(loss)"
        )
    if call in RESULTS and other_call in RESULTS:
        return (
            f"worker {one} called {call} and worker {other} called {other_call}; every worker must make the same calls "
            "in the same order, outside `if run.is_first`"
        )
    if not call or (other_call in RESULTS and call not in RESULTS):
        return call_missed(other_call, by=other, missed=one, instead=_doing(label))
    return call_missed(call, by=one, missed=other, instead=_doing(other_label))


class _Skipped(NamedTuple):
    step: int
    missed: int  # the worker that skipped the batch
    by: int  # one that did not


def _skipped(one: tuple[int, str], other: tuple[int, str]) -> _Skipped | None:
    """Where one worker exchanges the gradients of a step in which the other had none."""
    for (worker, label), (by, by_label) in ((one, other), (other, one)):
        found = re.fullmatch(r"step (\d+), no backward", label)
        if found and re.match(rf"step {found[1]}, (exchange|note)", by_label):
            return _Skipped(int(found[1]), worker, by)
    return None


def call_missed(call: str, *, by: int, missed: int, instead: str) -> str:
    """`instead`: what the worker that `missed` the call did."""
    return (
        f"worker {by} called {call} and worker {missed} did not; every worker must: call it outside `if run.is_first` "
        f"(worker {missed} {instead})"
    )


def _doing(label: str) -> str:
    if call := call_in(label):
        return f"had gone on to {call}"
    if found := re.match(r"step (\d+), (exchange|note)", label):
        return f"had gone on to the gradients of step {found[1]}"
    if found := re.match(r"(?:step \d+, )?end of (loop \d+|the script)", label):
        return f"had come to the end of {found[1]}"
    return f"was in {label!r}"

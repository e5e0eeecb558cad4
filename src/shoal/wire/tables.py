"""What a parameter server is told about tensors: a table of them, and the values of optimizers' groups. Pure values.

Not here: how a table is cut into blocks and where those are (`parameters`).
"""

from __future__ import annotations

import hashlib

import msgspec

Number = bool | int | float | None | tuple[float, ...]  # what an optimizer's group may hold besides its parameters


class TensorSpec(msgspec.Struct, frozen=True):
    """One tensor of a table."""

    name: str  # the state's global name, such as "model 1/fc.weight"
    shape: tuple[int, ...]
    dtype: str  # torch's name without "torch.", such as "float32"
    optimizer: int = 0  # number of the optimizer that updates it, in program order
    group: int = 0  # number of its group there


class RuleSpec(msgspec.Struct, frozen=True):
    """An optimizer: a class of torch.optim by name. No code travels."""

    name: str  # such as "AdamW"
    groups: tuple[dict[str, Number], ...]  # values of each group when the table was defined


class TableSpec(msgspec.Struct, frozen=True):
    """A job's tensors, in the order of its models. Tables of rows by key (`kind` "sparse") will stand beside these."""

    kind: str  # dense
    tensors: tuple[TensorSpec, ...]
    rules: tuple[RuleSpec, ...]
    block_bytes: int  # tensors are cut into blocks of at most so many bytes

    @property
    def digest(self) -> bytes:
        """Equal for equal tables, apart from the values of groups, which every push carries anew."""
        plain = (self.kind, self.tensors, tuple((rule.name, len(rule.groups)) for rule in self.rules), self.block_bytes)
        return hashlib.blake2b(msgspec.msgpack.encode(plain), digest_size=16).digest()


class Range(msgspec.Struct, frozen=True, order=True, array_like=True):
    """Positions of one epoch, from `start` up to and without `stop`."""

    epoch: int
    start: int
    stop: int

    @property
    def size(self) -> int:
        return self.stop - self.start


class LoopTerms(msgspec.Struct, frozen=True):
    """One loop over data whose positions are leased. All workers say the same."""

    loop: int  # number in program order
    first_epoch: int
    epochs: int
    samples: int  # per epoch
    update: int  # samples of one update: a worker's batch times the batches it accumulates
    updates: int | None = None  # the loop ends after so many; None: no limit but the epochs
    done: tuple[Range, ...] = ()  # that a resumed loop has used already, of its current and earlier epochs


class PushTerms(msgspec.Struct, frozen=True):
    """What belongs to a push besides its gradients."""

    # By optimizer: the present values of its groups; none for one that took no step. Without any no gradient counts.
    groups: tuple[tuple[dict[str, Number], ...], ...]
    scale: float = 1.0  # what servers multiply the gradient by: weights, clipping by the worker's own norm
    clip_norms: tuple[float | None, ...] = ()  # by optimizer: servers clip the sum to this (synchronous only)
    read: int = 0  # updates that were in the parameters it was computed with


class PushId(msgspec.Struct, frozen=True, order=True, array_like=True):
    """Names what a worker stages, before anybody decides about it."""

    worker: int
    number: int  # counts up in the worker's process; a push that is staged again gets a new one

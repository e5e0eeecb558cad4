"""What a parameter server is told about tensors: a table of them, and values of optimizers' groups. Pure values.

Not here: how a table is cut into blocks and where those are (`parameters`).
"""

from __future__ import annotations

import hashlib
from typing import Annotated

import msgspec
from msgspec import Meta

from shoal.bounds import Count, Members, Name, Ordinal, Shape, Size, Total, Whole

MOST_TENSORS = 1 << 16  # of a table
MOST_RULES = 1 << 10  # optimizers of a table
# What an optimizer's group may hold besides its parameters.
Number = bool | Whole | float | None | Annotated[tuple[float, ...], Meta(max_length=16)]
Group = Annotated[dict[Name, Number], Meta(max_length=64)]


class TensorSpec(msgspec.Struct, frozen=True):
    """One tensor of a table."""

    name: Name  # the state's global name, such as "model 1/fc.weight"
    shape: Shape
    dtype: Name  # torch's name without "torch.", such as "float32"
    optimizer: Ordinal = 0  # number of the optimizer that updates it, in program order
    group: Ordinal = 0  # number of the tensor's group in that optimizer


class RuleSpec(msgspec.Struct, frozen=True):
    """An optimizer: a class of torch.optim by name. No code travels."""

    name: Name  # such as "AdamW"
    groups: Members[Group]  # values of each group when the table was defined


class TableSpec(msgspec.Struct, frozen=True):
    """A job's tensors, in the order of its models. Tables of rows by key (`kind` "sparse") will be added later."""

    kind: Name  # dense
    tensors: Annotated[tuple[TensorSpec, ...], Meta(max_length=MOST_TENSORS)]
    rules: Annotated[tuple[RuleSpec, ...], Meta(max_length=MOST_RULES)]
    block_bytes: Size  # tensors are cut into blocks of at most so many bytes

    @property
    def digest(self) -> bytes:
        """Equal for equal tables. Ignores the values of groups, which every push carries again."""
        plain = (self.kind, self.tensors, tuple((rule.name, len(rule.groups)) for rule in self.rules), self.block_bytes)
        return hashlib.blake2b(msgspec.msgpack.encode(plain), digest_size=16).digest()


class Range(msgspec.Struct, frozen=True, order=True, array_like=True):
    """Positions of one epoch, from `start` to just before `stop`."""

    epoch: Total
    start: Count
    stop: Count

    @property
    def size(self) -> int:
        return self.stop - self.start


class LoopTerms(msgspec.Struct, frozen=True):
    """One loop over data whose positions are leased. All workers send the same terms."""

    loop: Ordinal  # number in program order
    first_epoch: Count
    epochs: Count
    samples: Count  # per epoch
    update: Count  # samples of one update: a worker's batch times the number of accumulated batches
    updates: Count | None = None  # the loop ends after so many updates; None: only the epochs limit it
    used_before: Count = 0  # in a resumed loop: all positions of epochs before this one are used
    done: Members[Range] = ()  # in a resumed loop: used positions of later epochs


class PushTerms(msgspec.Struct, frozen=True):
    """What a push carries besides its gradients."""

    # By optimizer: the present values of its groups; empty if it took no step. If all are empty, no gradient counts.
    groups: Annotated[tuple[Members[Group], ...], Meta(max_length=MOST_RULES)]
    scale: float = 1.0  # factor that servers apply to the gradient: weights, clipping by the worker's own norm
    # By optimizer: the norm to which servers clip the sum (synchronous only).
    clip_norms: Annotated[tuple[float | None, ...], Meta(max_length=MOST_RULES)] = ()
    read: Total = 0  # updates in the parameters with which the gradient was computed


class PushId(msgspec.Struct, frozen=True, order=True, array_like=True):
    """Names a push that a worker stages, before it is decided."""

    worker: Ordinal
    number: Count  # counts up in the worker's process; a push that is staged again gets a new number

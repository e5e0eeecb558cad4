"""Random values of any type that is decoded: well-formed, within its bounds, and fond of the bounds themselves."""

from __future__ import annotations

import random
import string
from typing import Any

import msgspec
from hypothesis import strategies as some
from hypothesis.strategies import SearchStrategy
from msgspec import inspect

LONGEST = 4  # of lists, as a rule
FLOATS = (0.0, 1.0, -1.0, 0.5, 1e300, -1e300, 1e-300, float("inf"), float("-inf"))
NAN = float("nan")


class RandomValues:
    """`rng` decides; `known` has values that a field of that name takes now and then, so that more makes sense."""

    def __init__(
        self, rng: random.Random, known: dict[str, list[Any]] | None = None, *, floats: tuple[float, ...] = FLOATS
    ) -> None:
        self._rng = rng
        self._floats = floats
        self._known = known or {}

    def of(self, kind: Any) -> Any:
        """A value of a Python type."""
        return self._value(inspect.type_info(kind), "")

    def _value(self, kind: inspect.Type, name: str) -> Any:
        known = self._known.get(name)
        if known and self._rng.random() < 0.8:
            return self._rng.choice(known)
        match kind:
            case inspect.IntType(ge=least, le=most):
                assert least is not None and most is not None
                return self._rng.choice((least, most, *(min(least + few, most) for few in range(1, 5)), most // 2))
            case inspect.StrType():
                return "".join(self._rng.choices(string.printable, k=self._rng.randrange(LONGEST)))
            case inspect.BytesType(max_length=most):
                assert most is not None
                return self._rng.randbytes(min(most, self._rng.choice((0, 1, 16, 32))))
            case inspect.FloatType():
                return self._rng.choice(self._floats)
            case inspect.BoolType():
                return self._rng.random() < 0.5
            case inspect.NoneType():
                return None
        return self._composite(kind, name)

    def _composite(self, kind: inspect.Type, name: str) -> Any:
        match kind:
            case inspect.UnionType():
                return self._value(self._rng.choice(kind.types), name)
            case inspect.VarTupleType() | inspect.ListType():
                found = [self._value(kind.item_type, "") for _ in range(self._rng.randrange(LONGEST))]
                return tuple(found) if isinstance(kind, inspect.VarTupleType) else found
            case inspect.TupleType():
                return tuple(self._value(item, "") for item in kind.item_types)
            case inspect.DictType():
                count = self._rng.randrange(LONGEST)
                return {self._value(kind.key_type, ""): self._value(kind.value_type, "") for _ in range(count)}
            case inspect.StructType():
                return kind.cls(**{field.name: self._value(field.type, field.name) for field in kind.fields})
        raise AssertionError(f"no random value of {kind}")


def mutated(data: bytes, rng: random.Random) -> bytes:
    """The bytes with some of them changed, left out or put in."""
    found = bytearray(data)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(found)) if found else 0
        match rng.randrange(3):
            case 0 if found:
                found[at] = rng.randrange(256)
            case 1 if found:
                del found[at : at + rng.randrange(1, 5)]
            case _:
                found[at:at] = rng.randbytes(rng.randrange(1, 5))
    return bytes(found)


def messages(*kinds: type[msgspec.Struct]) -> SearchStrategy[Any]:
    """For hypothesis."""
    seeds = some.integers(min_value=0, max_value=2**63)
    return some.builds(lambda kind, seed: RandomValues(random.Random(seed)).of(kind), some.sampled_from(kinds), seeds)

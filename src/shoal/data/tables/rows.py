"""Rows of an Arrow batch as samples: dicts from column name to a value that torch's default collating takes.

| column | value in a sample | collated |
| --- | --- | --- |
| integers, booleans | `int`, `bool` | int64, bool |
| floats | a numpy scalar; missing: NaN | a tensor of the column's type |
| lists of numbers, also nested | a tensor of their type; of lists of unequal lengths, a list of tensors | a tensor |
| text, bytes, categories | `str`, `bytes` | a list |
| all else | what Arrow makes of it in Python | needs a collate function, except dicts |

A missing value that is no float is None, which default collating refuses. Not here: reading files (`table_files`).
"""

from __future__ import annotations

from typing import Any

import torch

from shoal.data import texts
from shoal.errors import DataError


def rows_of(batch: Any) -> list[dict[str, Any]]:
    """The rows of a `pyarrow.RecordBatch`. They share no memory with it or with each other."""
    names = batch.schema.names
    columns = [values_of(column, name) for name, column in zip(names, batch.columns, strict=True)]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def values_of(array: Any, column: str) -> list[Any]:
    """The values of an Arrow array, one per row. `column` names it in errors."""
    import pyarrow.types as kinds  # type: ignore[import-untyped]  # noqa: PLC0415  an extra; has no types

    kind = array.type
    if kinds.is_dictionary(kind):
        return values_of(array.dictionary_decode(), column)
    if getattr(kind, "extension_name", "") == "arrow.fixed_shape_tensor":
        shape = tuple(kind.shape)
        return [None if value is None else value.reshape(shape) for value in values_of(array.storage, column)]
    if kinds.is_floating(kind):
        return list(array.to_numpy(zero_copy_only=False))
    if _is_list(kind):
        return _lists(array, column)
    values: list[Any] = array.to_pylist()
    return values


def _is_list(kind: Any) -> bool:
    import pyarrow.types as kinds  # noqa: PLC0415  as above

    return bool(kinds.is_list(kind) or kinds.is_large_list(kind) or kinds.is_fixed_size_list(kind))


def _lists(array: Any, column: str) -> list[Any]:
    import pyarrow.types as kinds  # noqa: PLC0415  as above

    inner = array.type.value_type
    is_number = kinds.is_integer(inner) or kinds.is_floating(inner) or kinds.is_boolean(inner)
    if not is_number and not _is_list(inner):
        values: list[Any] = array.to_pylist()
        return values
    lengths = array.value_lengths().to_pylist()
    flat = array.flatten()  # without the places of missing lists
    if is_number:
        parts = iter(_tensor(flat, column).split([length or 0 for length in lengths]))
        return [None if length is None else part.clone() for length, part in zip(lengths, parts, strict=True)]
    below = iter(values_of(flat, column))
    return [None if length is None else _joined([next(below) for _ in range(length)]) for length in lengths]


def _tensor(flat: Any, column: str) -> torch.Tensor:
    import pyarrow.types as kinds  # noqa: PLC0415  as above

    if flat.null_count and not kinds.is_floating(flat.type):
        raise DataError(texts.number_missing(column, str(flat.type)))
    return torch.tensor(flat.to_numpy(zero_copy_only=False))


def _joined(lists: list[Any]) -> Any:
    """One tensor of tensors that are equally long; otherwise the list itself."""
    is_even = all(isinstance(each, torch.Tensor) and each.shape == lists[0].shape for each in lists)
    return torch.stack(lists) if lists and is_even else lists

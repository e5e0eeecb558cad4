"""What is refused before a cluster is asked to write a table."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest

import shoal.dask
import shoal.ray
import shoal.spark
from shoal.errors import UsageError
from shoal.launching import texts


def train(run: object, data: object) -> None:
    """Never called."""


@pytest.mark.parametrize(("module", "engine"), [(shoal.ray, "ray"), (shoal.spark, "spark"), (shoal.dask, "dask")])
@pytest.mark.parametrize("given", ["local", "dask"])
def test_a_function_of_one_cluster_takes_no_other(module: ModuleType, engine: str, given: str) -> None:
    with pytest.raises(UsageError) as raised:
        module.train(train, "rows", on=given)
    assert str(raised.value) == texts.on_given(engine, given)


def test_dask_without_its_scheduler_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)  # as if it could not be imported
    with pytest.raises(UsageError) as raised:
        shoal.dask.train(train, [1], at="rows")
    assert str(raised.value) == texts.no_table("list", "dask.dataframe.DataFrame")
    frame = SimpleNamespace(to_delayed=list, npartitions=1, columns=())
    with pytest.raises(UsageError) as raised:
        shoal.dask.train(train, frame, at="rows")
    assert str(raised.value) == texts.engine_not_installed("dask", "distributed", "shoal[dask]")

"""The public names, exactly: a new one is a visible change."""

from __future__ import annotations

import subprocess
import sys

import shoal

RUN = {
    "applied", "batches", "device", "epochs", "evaluate", "is_first", "keep", "log", "log_to", "mean", "model",
    "optimizer", "rank", "save", "step", "stop", "stopped", "weight", "world_size",
}  # fmt: skip


def public(kind: type) -> set[str]:
    return {name for name in vars(kind) if not name.startswith("_")}


def test_exported_names() -> None:
    assert sorted(shoal.__all__) == ["Epoch", "Files", "JobResult", "Run", "launch", "main", "table_files"]
    assert set(dir(shoal)) == {*shoal.__all__, "__version__"}
    for name in shoal.__all__:
        assert getattr(shoal, name) is not None


def test_names_of_run() -> None:
    assert public(shoal.Run) == RUN
    assert public(shoal.Epoch) == {"batches"}


def test_names_of_a_result() -> None:
    fields = {"error", "exit_code", "run_dir"}
    assert public(shoal.JobResult) | fields == {*fields, "best_checkpoint", "check", "metrics", "report"}


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(shoal, "Trainer")


def test_importing_the_package_imports_no_torch() -> None:
    code = "import shoal, sys; print('torch' in sys.modules)"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
        == "False"
    )

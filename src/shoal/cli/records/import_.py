"""`shoal import FILE RUN_DIR`: makes a run directory from a model's file, for `shoal run --resume` to start from."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from shoal.checkpoint.published.weights import publish_weights, read_weights
from shoal.checkpoint.stores.opening import store_for
from shoal.cli import texts
from shoal.cli.options import Parser
from shoal.disk import run_directory
from shoal.errors import UsageError, printable
from shoal.job_config import JobConfig

DESCRIPTION = """\
Makes the run directory RUN_DIR with one checkpoint: the weights in FILE, which is a safetensors file or a torch file
with a state_dict. `shoal run --resume RUN_DIR train.py` then trains from these weights, with everything else new."""


def parser() -> Parser:
    made = Parser(prog="shoal import", description=DESCRIPTION, usage="shoal import FILE RUN_DIR")
    made.add_argument("file", metavar="FILE", help="model.safetensors, or a torch state_dict file")
    made.add_argument("run_dir", metavar="RUN_DIR", help="the run directory to make")
    return made


def main(arguments: Sequence[str]) -> int:
    parsed = parser().parse_all(arguments)
    file = Path(parsed.file)
    weights = read_weights(file)
    made = run_directory.create(JobConfig(run_dir=parsed.run_dir), "")
    with made.lock:
        try:
            store = store_for(made.path, "")
            name = publish_weights(store, weights, made.config.to_toml(), f"imported from {printable(file.name)}")
        except BaseException as error:
            shutil.rmtree(made.path, ignore_errors=True)
            if isinstance(error, OSError):
                raise UsageError(texts.run_not_written(made.path, error.strerror or error)) from None
            raise
    print(f"{made.path}: {name} with {len(weights)} tensors; start with `shoal run --resume {made.path} SCRIPT`")
    return 0

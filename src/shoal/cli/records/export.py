"""`shoal export RUN`: a run's model as a file that other programs load: safetensors, or a torch state_dict."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from shoal.checkpoint.published.catalogue import load_manifest
from shoal.checkpoint.published.weights import ENDINGS, FORMATS, Weights, weights_of, write_weights
from shoal.cli import texts
from shoal.cli.options import Parser
from shoal.cli.records.run_store import chosen, run_store
from shoal.errors import CheckpointUnusable, UsageError
from shoal.watch.wording import amount

DESCRIPTION = """\
Writes the model of RUN's newest checkpoint to a file, with the keys of its state_dict():
    model.load_state_dict(safetensors.torch.load_file("model.safetensors"))
If the run has several models, each gets a file of its own, unless --model names one."""


def parser() -> Parser:
    made = Parser(prog="shoal export", description=DESCRIPTION, usage="shoal export [options] RUN")
    made.add_argument("run", metavar="RUN", help="run directory, name under runs/, or last")
    made.add_argument("--checkpoint", default="", metavar="NAME", help="its name or mark (default: the newest)")
    made.add_argument("--to", default="", metavar="FILE", help="default: model.safetensors or model.pt, here")
    made.add_argument("--format", default=FORMATS[0], metavar="FORMAT", help="safetensors (default) or torch")
    made.add_argument("--model", default="", metavar="NAME", help="only this one of several models")
    made.add_argument("--force", action="store_true", help="replace a file that is there")
    return made


def main(arguments: Sequence[str]) -> int:
    parsed = parser().parse_all(arguments)
    if parsed.format not in FORMATS:
        raise UsageError(texts.no_such_format(parsed.format, FORMATS))
    target = Path(parsed.to or f"model{ENDINGS[parsed.format]}")
    if not parsed.force:
        _refuse(target)  # before reading for minutes
    with run_store(parsed.run) as (_, store):
        name = chosen(store, parsed.checkpoint)
        try:
            models = weights_of(store, load_manifest(store, name))
        except CheckpointUnusable as error:
            raise CheckpointUnusable(texts.name_another(error)) from None
    files = targets(target, _picked(models, parsed.model, name))
    for path in files:
        if not parsed.force:
            _refuse(path)
    for path, weights in files.items():
        write_weights(path, weights, parsed.format)
        print(f"{path}: {len(weights)} tensors of {name}, {amount(path.stat().st_size)}")
    return 0


def _refuse(path: Path) -> None:
    if path.exists():
        raise UsageError(texts.already_there(path))


def _picked(models: dict[str, Weights], wanted: str, name: str) -> dict[str, Weights]:
    if not models:
        raise CheckpointUnusable(texts.no_model(name))
    if wanted and wanted not in models:
        raise UsageError(texts.no_such_model(wanted, tuple(models)))
    return {wanted: models[wanted]} if wanted else models


def targets(path: Path, models: dict[str, Weights]) -> dict[Path, Weights]:
    """A single model goes to `path`; each of several goes to a file beside it that has the model's name."""
    if len(models) == 1:
        [only] = models.values()
        return {path: only}
    slugs = {name: re.sub(r"[^A-Za-z0-9_.]+", "-", name).removeprefix("model-") for name in models}
    return {path.with_stem(f"{path.stem}-{slugs[name]}"): weights for name, weights in models.items()}

"""Model weights alone: out of a checkpoint, into one, and as files that other programs read and write.

A model's weights have the keys of its `state_dict()`. The file is safetensors, or torch's own format where a user asks
for it; nothing else in Shoal writes that format. It is read with `weights_only=True`, which makes nothing but tensors.
Not here: checkpoints of training (`capture`, `part_writer`, `reader`).
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import safetensors.torch
import torch
from safetensors import SafetensorError

from shoal.checkpoint import texts
from shoal.checkpoint.parts.capture import Capture, CaptureMemory, NamedState
from shoal.checkpoint.parts.part_file import LENGTH_BYTES, MAX_HEADER_BYTES
from shoal.checkpoint.parts.part_writer import write_part
from shoal.checkpoint.published.manifest import About, Manifest, checkpoint_name, part_name
from shoal.checkpoint.published.reader import read_state
from shoal.checkpoint.published.store_publisher import StorePublisher
from shoal.checkpoint.state_tree import flatten_named
from shoal.checkpoint.stores.store import Store
from shoal.errors import CheckpointUnusable, UsageError
from shoal.files import open_plain
from shoal.membership.publisher import PublishRequest
from shoal.values import Cursor, Generation

FORMATS = ("safetensors", "torch")
ENDINGS = {"safetensors": ".safetensors", "torch": ".pt"}
FIRST_MODEL = "model 1"  # what the first `run.model` of a script is called

Weights = dict[str, torch.Tensor]  # by key of the state_dict


def weights_of(store: Store, manifest: Manifest) -> dict[str, Weights]:
    """The models of a checkpoint, by name. Tied weights are one tensor under several keys. Reads nothing else."""
    tree = read_state(store, manifest, wanted=lambda name: name.startswith("models/"))
    try:
        return {
            model: {key: tree["models"][model][entry] for key, entry in keys.items()}
            for model, keys in tree["keys"].items()
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise CheckpointUnusable(texts.no_models(manifest.checkpoint, error)) from None


def publish_weights(store: Store, weights: Weights, config: str, reason: str) -> str:
    """Publish weights as a checkpoint from which a job can start, and return its name."""
    name, file = checkpoint_name(0, 0), part_name(0, 1)
    tree = {"models": {FIRST_MODEL: weights}, "keys": {FIRST_MODEL: {key: key for key in weights}}}
    flat = flatten_named(tree, named="the file")
    state = NamedState(flat.names, flat.tensors, steady=())
    about = About(
        kind="weights",
        step=0,
        generation=Generation(number=0, members=(), schedule="", codec="", reason=reason),
        cursor=Cursor(),
        loop=0,
        first_step=0,
        config=config,
        tree=msgspec.Raw(flat.skeleton),
        reason=reason,
    )
    capture = Capture(state, CaptureMemory(), rank=0, world_size=1)
    write_part(store, f"{name}/{file}", capture, about)
    StorePublisher(store, keep=1).publish(PublishRequest(checkpoint=name, files=(file,), mark=""))
    return name


def read_weights(path: Path) -> Weights:
    """Read weights from a file, which may be a safetensors file or a torch state_dict."""
    try:
        loaded = safetensors.torch.load_file(path) if _is_safetensors(path) else _torch_load(path)
    except OSError as error:
        raise UsageError(texts.unreadable(str(path), error.strerror or error)) from None
    except SafetensorError as error:
        raise UsageError(texts.damaged_safetensors(path, error)) from None
    if not isinstance(loaded, Mapping) or not loaded:
        raise UsageError(texts.no_state_dict(path, type(loaded).__name__))
    for key, value in loaded.items():
        if not isinstance(key, str) or not isinstance(value, torch.Tensor):
            raise UsageError(texts.not_only_tensors(path, type(value).__name__, key))
    return {key: value.detach().to("cpu").contiguous() for key, value in loaded.items()}


def _is_safetensors(path: Path) -> bool:
    with open_plain(path) as file:
        start = file.read(LENGTH_BYTES + 1)
    length = int.from_bytes(start[:LENGTH_BYTES], "little")
    return len(start) > LENGTH_BYTES and length <= MAX_HEADER_BYTES and start[LENGTH_BYTES:] == b"{"


def _torch_load(path: Path) -> Any:
    try:
        # `weights_only` builds tensors and plain containers and refuses everything else, so no foreign code can run.
        return torch.load(path, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception as error:  # unpickling foreign bytes can raise anything
        raise UsageError(texts.no_model_file(path, type(error).__name__)) from None


def write_weights(path: Path, weights: Weights, file_format: str) -> None:
    """Write weights to a temporary file and rename it, so that the file is there whole or not at all."""
    aside = path.parent / f".{path.name}-{secrets.token_hex(8)}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if file_format == "torch":
            torch.save(weights, aside)
        else:
            safetensors.torch.save_file(_untied(weights), aside, metadata={"format": "pt"})
        with aside.open("rb") as file:
            os.fsync(file.fileno())
        aside.replace(path)
    except KeyError as dtype:  # how safetensors reports a dtype that it lacks
        raise UsageError(texts.dtype_not_exported(path, dtype)) from None
    except (OSError, SafetensorError, RuntimeError) as error:
        raise UsageError(texts.not_written(path, getattr(error, "strerror", None) or error)) from None
    finally:
        aside.unlink(missing_ok=True)


def _untied(weights: Weights) -> Weights:
    """Copies of tied tensors: a safetensors file has no tensor under two keys, and all keys must be loadable."""
    seen: set[int] = set()
    own: Weights = {}
    for key, value in weights.items():
        own[key] = value.clone() if id(value) in seen else value
        seen.add(id(value))
    return own

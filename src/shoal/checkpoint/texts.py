"""What is said about checkpoints, stores and model files that cannot be used, and about states that cannot be kept.

Tests refer to these texts, so that mending a word breaks none of them. Not here: what is wrong with the bytes of a part
file or a skeleton; their decoders say that (`parts.part_file`, `state_tree`).
"""

from __future__ import annotations

# States that cannot be kept


def too_deep(named: str, most: int) -> str:
    return f"{named} is nested deeper than {most}"


def not_dense(at: str, layout: object) -> str:
    return f"{at} is a {layout} tensor; a state holds dense ones only"


def no_text(at: str, value: str) -> str:
    return f"{at} is {value!r}, which is no text; encode it in another way"


def bad_key(at: str, key: object) -> str:
    return f"{at} has the key {key!r}; keys of a state are strings or integers"


def bad_kind(at: str, kind: str) -> str:
    return f"{at} is a {kind}; a state holds numbers, strings, tensors, lists and dictionaries only"


def unknown_dtype(dtype: str) -> str:
    return f"a tensor of dtype {dtype} cannot be kept in a checkpoint; convert it to another dtype"


def header_too_long(size: int, most: int) -> str:
    return (
        f"a part of the checkpoint needs a header of {size} bytes, {most} are allowed; the state has too many tensors"
    )


# Stores and marks


def no_package(scheme: str, what: str) -> str:
    return f"{scheme}:// needs a package that is not installed: {what}"


def no_store(url: str, why: object) -> str:
    return f"checkpoints cannot be kept at {url}: {why}"


def bad_label(label: str) -> str:
    allowed = "use up to 64 letters, digits, dots, dashes, underscores, and no checkpoint's name"
    return f"{label!r} cannot mark a checkpoint; {allowed}"


# Files of a checkpoint. `file` begins with the checkpoint's name.


def damaged(file: str, why: object) -> str:
    return f"{file} is damaged: {why}"


def unreadable(file: str, why: object) -> str:
    return f"{file} cannot be read: {why}"


def missing(file: str, place: str) -> str:
    return f"{file} is missing from {place}"


def not_published(manifest: str, place: str, name: str) -> str:
    return f"{missing(manifest, place)}: {name} is not published"


def of_file(file: str, what: str) -> str:
    """`what`: a text without its subject, such as `wrong_size`."""
    return f"{file} {what}"


def wrong_size(found: int, size: int) -> str:
    return f"has {found} bytes; it should have {size}"


def header_of_another_size(found: int, size: int) -> str:
    return f"has a header for {found} bytes; the manifest says {size}"


def shorter_than_its_header(file: str, found: int, size: int) -> str:
    return f"{file} has {found} bytes; by its header it should have {size}"


def bad_checksum(key: str) -> str:
    return f"the checksum of {key} is another one"


BAD_CHECKSUM = "has another checksum than when it was written"
MISSING = "is missing"

# Manifests

BAD_MANIFEST_CHECKSUM = "its checksum is another one"


def manifest_too_large(manifest: str, size: int, most: int) -> str:
    return f"{manifest} has {size} bytes; no manifest has more than {most}"


def other_format(manifest: str, found: int, known: int) -> str:
    return f"{manifest} has format {found}; this version of Shoal reads {known}"


def of_another_checkpoint(manifest: str, name: str) -> str:
    return f"{manifest} is the manifest of {name}"


def no_such_part(name: str, size: int) -> str:
    return f"no part is called {name!r} with {size} bytes"


def pieces_do_not_fit(tensor: str) -> str:
    return f"the pieces of {tensor} do not fit"


# Parts that are not one state


def no_index(file: str, why: object) -> str:
    return f"{file} has no index of its tensors: {why}"


def does_not_fit_its_index(file: str, key: str, what: str) -> str:
    return f"{file} does not fit its own index: {key} {what}"


def said_to_be_elsewhere(file: str) -> str:
    return f"says it is in {file}"


def in_checkpoint(checkpoint: str, why: object) -> str:
    return f"{checkpoint}: {why}"


def descriptions(count: int) -> str:
    return f"{count} of the parts describe the state; exactly one should"


def of_another_step(step: int, generation: int) -> str:
    return f"its parts are of step {step}, generation {generation}"


DIFFERENT_COUNTS = "its parts know different numbers of tensors"


def disagreement(tensor: str) -> str:
    return f"its parts disagree about {tensor}"


def anothers_tensor(tensor: str, rank: int) -> str:
    return f"{tensor} is not rank {rank}'s"


# Pieces and their tensors

NOT_IN_HEADER = "is not in the file's header"


def unlike_header(key: str) -> str:
    return f"its header does not have {key} as the manifest does"


def dtype_unknown(dtype: str) -> str:
    return f"has the unknown dtype {dtype}"


def not_whole(tensor: str) -> str:
    return f"the pieces of {tensor} are not the whole tensor"


def other_dimensions(piece: str, tensor: str) -> str:
    return f"{piece} has another number of dimensions than {tensor}"


def outside(piece: str, tensor: str) -> str:
    return f"{piece} lies outside {tensor}"


def overlapping(piece: str, other: str) -> str:
    return f"{piece} and {other} overlap"


# Model files


def no_models(checkpoint: str, why: object) -> str:
    return f"{checkpoint} does not say which tensors are its models': {why}"


def damaged_safetensors(path: object, why: object) -> str:
    return f"{path} is a damaged safetensors file: {why}"


def no_state_dict(path: object, kind: str) -> str:
    return f"{path} holds a {kind}, not a state_dict with tensors"


def not_only_tensors(path: object, kind: str, key: object) -> str:
    return (
        f"{path} has {kind} under {key!r}; a state_dict has tensors only: save that alone, with "
        "torch.save(model.state_dict(), FILE)"
    )


def no_model_file(path: object, error: str) -> str:
    return (
        f"{path} is neither a safetensors file nor a torch file of tensors alone ({error}); nothing else is unpickled "
        "here: save the weights with torch.save(model.state_dict(), FILE)"
    )


def dtype_not_exported(path: object, dtype: object) -> str:
    return f"{path}: safetensors files have no tensors of dtype {dtype}; use --format torch"


def not_written(path: object, why: object) -> str:
    return f"{path} cannot be written: {why}"


# After a checkpoint is published


def not_tidied(checkpoint: str, why: object) -> str:
    return (
        f"{checkpoint} is published, but its mark or the removal of older checkpoints failed: {why}; the next "
        "checkpoint tries again"
    )

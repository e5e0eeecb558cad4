"""What users are told about parameter servers that cannot do what a job asks: optimizers, tables, memory, addresses.

Tests refer to these texts, so that mending a word breaks none of them. Not here: what a server answers to a peer that
breaks the protocol (`ServerRefused` of kind bad-request); no user can cause that.
"""

from __future__ import annotations

from collections.abc import Iterable

from shoal.values import Address

# Optimizers. `number`: counted from 0, as the table does; users count from 1.


def optimizer_not_in_parts(name: str, why: str, known: Iterable[str]) -> str:
    return (
        f"optimizer {name} cannot run in parts on parameter servers: {why}; use one of {', '.join(known)}, "
        "or --strategy all-reduce"
    )


WHY_NOT_IN_PARTS = {
    "LBFGS": "it evaluates the loss several times per step and needs all parameters at once",
    "Muon": "it needs whole matrices",
    "Adafactor": "it keeps sums over the rows and columns of whole matrices",
    "SparseAdam": "it takes sparse gradients",
}
NOT_BY_ELEMENT = "it is not one of torch.optim that treats every element by itself"


def flag_of_one_process(name: str, number: int, flag: str) -> str:
    return (
        f"optimizer {number + 1} ({name}) has {flag}=True, which is for graphs of one process: parameter servers run "
        f"without; leave {flag} out, or use --strategy all-reduce"
    )


def optimizer_not_made(name: str, number: int, why: Exception) -> str:
    return f"optimizer {number + 1} ({name}) cannot be made with these values: {why}"


def wrong_value(name: str, number: int, given: str, default: object) -> str:
    """`given`: the setting and its value, such as `lr='fast'`."""
    return f"optimizer {number + 1} ({name}) has {given}; something like {default!r} is needed"


def groups_changed(number: int, pushed: int, groups: int) -> str:
    return f"a push has {pushed} groups of optimizer {number + 1}; the table has {groups}"


def state_changed(name: str, number: int, was: Iterable[str], needed: Iterable[str]) -> str:
    """`was`, `needed`: names of tensors that the optimizer keeps."""
    return (
        f"optimizer {number + 1} ({name}) began with state {', '.join(was)}, and a push has values that "
        f"need {', '.join(needed)}: leave amsgrad, centered and the use of momentum as they are while training"
    )


def anothers_state(name: str, tensor: str, has: Iterable[str], needed: Iterable[str]) -> str:
    wanted = ", ".join(needed) or "no state"
    return (
        f"the state of {tensor} has {', '.join(has)}; its optimizer ({name}) needs {wanted}: is it that of another "
        "optimizer?"
    )


def too_many_groups(count: int, most: int) -> str:
    return f"optimizers with {count} groups; servers know at most {most}"


# Tables


def not_dense(kind: str) -> str:
    return f"a table of kind {kind!r}: this server knows dense ones only"


def group_missing(tensor: str, group: int, optimizer: int) -> str:
    return f"{tensor} belongs to group {group} of optimizer {optimizer}, which the table does not have"


def negative_shape(tensor: str, shape: tuple[int, ...]) -> str:
    return f"{tensor} has the shape {shape}"


def bad_dtype(tensor: str, dtype: str, known: Iterable[str]) -> str:
    return (
        f"a parameter server cannot hold {tensor}: its dtype is {dtype}, and servers know {', '.join(known)}; use one "
        "of these, or --strategy all-reduce"
    )


def bad_block_size(size: int, grain: int) -> str:
    return f"blocks of {size} bytes: a multiple of {grain} is needed"


def table_too_large(size: int, most: int) -> str:
    return f"a table of {size} bytes; parameter servers hold at most {most}"


def too_many_blocks(size: int, count: int, block_bytes: int, *, most: int, better: int) -> str:
    """`better`: a size of blocks, in bytes, that works."""
    return (
        f"a table of {size} bytes in {count} blocks of {block_bytes} bytes or less; at most {most} are possible: cut "
        f"it into blocks of {better} bytes"
    )


def another_table(job: str) -> str:
    return f"job {job} has another table already: workers must have the same models and optimizers"


# Gradients and values that a script hands over


def not_in_the_table(name: str, tensors: int) -> str:
    return f"{name!r} is not in the table that was defined; it has {tensors} tensors"


def gradient_differs(name: str, gradient: str, parameter: str) -> str:
    """`gradient`, `parameter`: dtype and shape, as `tensor_kind` writes them."""
    return (
        f"the gradient of {name} is {gradient}; the parameter is {parameter}: a parameter server takes gradients of "
        "the same dtype and shape"
    )


def sparse_gradient(name: str) -> str:
    return f"the gradient of {name} is sparse; a parameter server takes dense ones"


def target_differs(name: str, target: str, wanted: str) -> str:
    """`target`: dtype and shape of the tensor to fill; `wanted`: of the one on the servers, or NOT_THERE."""
    return f"{name} is {target}; the servers have {wanted}"


NOT_THERE = "nothing of that name"


def tensor_kind(dtype: object, shape: tuple[int, ...]) -> str:
    return f"{dtype} of shape {shape}"


def values_differ(name: str, given: tuple[int, ...] | None, shape: tuple[int, ...]) -> str:
    """`given`: the shape of the values; None: there are no values."""
    what = "nothing" if given is None else f"shape {given}"
    return f"values for {name}: {what} was given; the table says shape {shape}"


def values_missing(server: int, job: str) -> str:
    return (
        f"server {server} has no values of some blocks of job {job}: nobody has assigned them, or "
        "they were lost with other servers; assign them, from a checkpoint where there is one"
    )


# Memory, quotas and codecs of servers. Sizes in bytes.


def _mebibytes(size: int) -> str:
    return f"{size / (1 << 20):.1f} MiB"


def no_room(server: int, what: str, *, wanted: int, held: int, limit: int) -> str:
    return (
        f"server {server} has no room for {what}: it takes {_mebibytes(wanted)} and the server holds "
        f"{_mebibytes(held)} of the {_mebibytes(limit)} that it may; start more servers, give them more "
        "(--server-memory), or use fewer replicas"
    )


def over_quota(job: str, needed: int, replicas: int, quota: int) -> str:
    return (
        f"job {job} needs {needed} bytes on the servers for parameters and optimizers' state, {replicas} replicas "
        f"included; its quota is {quota}: raise --server-quota, or use fewer replicas or an optimizer with less state"
    )


def staged_over_quota(job: str, staged: int, quota: int) -> str:
    return (
        f"job {job} would have {staged} bytes of pushes staged on this server; that is over its quota of {quota} "
        "bytes: raise --server-quota"
    )


def codec_unknown(server: int, why: Exception) -> str:
    return (
        f"server {server} cannot decode what workers send: {why}; install the codec's package where the servers run "
        "too, or leave --codec out"
    )


# Groups of servers and their addresses


def wrong_version(speaker: str, own: int, other: int) -> str:
    """`speaker`: such as "server 2"."""
    return f"{speaker} speaks version {own}, not {other}: install the same Shoal"


NO_TOKEN = "a server group needs a token; see --token-file"  # noqa: S105  it is a text
NO_HOST = "no host to listen on is given; 127.0.0.1 is this machine alone"


def no_servers(expected: int) -> str:
    return f"a group of {expected} servers: at least 1 is needed"


def bad_replicas(replicas: int, expected: int) -> str:
    return f"{replicas} replicas on {expected} servers: from 1 to {expected} are possible"


def cannot_listen(address: Address, why: str | None) -> str:
    return f"cannot listen on {address}: {why}; choose another address or port"


def keeper_unavailable(why: Exception) -> str:
    """`why`: says `cannot_listen`."""
    return f"the servers' keeper {why}"


def keeper_unreached(address: Address, why: str) -> str:
    return f"no keeper of a server group can be reached at {address}: {why}; see `shoal servers start` for its address"

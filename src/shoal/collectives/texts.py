"""What collectives tell people about calls and settings that cannot work; tests refer to these texts.

Not here: the error of ranks that are in different operations (`agreement`).
"""

from __future__ import annotations

from collections.abc import Sequence

ONE_RANK = "a group of one rank has nobody to exchange tensors with"
AVERAGE_OF_BOOLEANS = "ReduceOp.AVG has no meaning for booleans; use ReduceOp.MAX or MIN, or convert the tensor"

# Schedules and carriers

NO_MPI4PY = "--carrier mpi needs mpi4py and MPICH: pip install 'shoal[mpi]'"
MPI_STARTED_BEFORE = "MPI was started before Shoal's carrier; --carrier mpi has to start it itself"


def no_schedule(name: str, known: Sequence[str]) -> str:
    return f"there is no schedule {name!r}; known are {', '.join(known)}"


def no_carrier(name: str) -> str:
    return f"there is no carrier {name!r}; there is gloo, nccl and mpi"


def nccl_fails(ranks: int, why: object) -> str:
    return (
        f"NCCL does not work between the GPUs of {ranks} ranks: {why}; NCCL_SOCKET_IFNAME names the network interface "
        "that it uses between machines, and with SHOAL_NCCL=0 tensors go through host memory"
    )


def nccl_impossible(why: str) -> str:
    return f"--carrier nccl needs NCCL and a GPU for each worker; {why}: use --carrier shoal"


def no_mpi_library(why: object) -> str:
    return f"mpi4py finds no MPI library ({why}); pip install 'shoal[mpi]'"


def no_mpich(library: str) -> str:
    return f"--carrier mpi needs MPICH, not {library}"


def mpi_did_not_start(code: int, thread_level: int) -> str:
    return f"MPI did not start: code {code}, thread level {thread_level}"


# Types and reductions. `dtype` is torch's.


def cannot_send(dtype: object) -> str:
    return f"tensors of {dtype} cannot be sent; convert them to another dtype first"


def cannot_reduce(dtype: object) -> str:
    return f"torch cannot reduce {dtype} on a CPU; convert the tensor to another dtype first"


def no_order(reduction: str) -> str:
    return f"complex numbers have no {reduction}; reduce their real and imaginary parts"


def no_bits(dtype: object, reduction: str) -> str:
    return f"{dtype} has no {reduction} of its bits; only whole numbers and booleans do"


def no_mean(label: str, dtype: object) -> str:
    return f"{label!r}: {dtype} has no mean of its own; scale the numbers and sum them"


# Calls of a group


def only_sums(label: str, done: str) -> str:
    """`done`: encoded or scaled."""
    return f"{label!r}: only sums of floating point numbers can be {done}"


def no_tensor(label: str) -> str:
    return f"{label!r}: all_reduce was given no tensor"


def several_dtypes(label: str, call: str, dtype: object) -> str:
    return f"{label!r}: {call} needs one dtype, not {dtype} and others"


def wrong_count(label: str, call: str, ranks: int, given: int) -> str:
    return f"{label!r}: {call} needs one tensor per rank, {ranks}, not {given}"


def unequal_shapes(label: str, call: str, rank: int, shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> str:
    return f"{label!r}: {call} needs equal shapes for rank {rank}, not {shapes[0]} and {shapes[1]}"


def no_rank(label: str, rank: int, ranks: int) -> str:
    return f"{label!r}: there is no rank {rank} in a group of {ranks}"


def with_itself(label: str, rank: int) -> str:
    return f"{label!r}: rank {rank} cannot exchange a tensor with itself"


def not_dense(label: str, layout: object) -> str:
    return f"{label!r}: only dense tensors can be exchanged, not one of layout {layout}"


def several_devices(label: str, devices: str) -> str:
    return f"{label!r}: the tensors of one call are on {devices}; they should be on one device"


def in_cuda_graph(label: str) -> str:
    return f"{label!r}: collectives cannot be captured in a CUDA graph; call them outside of the capture"


# Calls of torch.distributed


def no_reduction(name: str) -> str:
    return f"the backend shoal has no reduction {name}"


def sparse_reduction(name: str) -> str:
    return f"sparse tensors can only be summed, not reduced by {name}"


def sparse_layout(layout: object) -> str:
    return f"only sparse tensors of layout torch.sparse_coo can be summed, not {layout}"


def wrong_whole(shape: Sequence[int], parts: int, elements: int) -> str:
    return (
        f"a tensor of {tuple(shape)} does not hold {parts} parts of {elements} elements; "
        f"it needs {parts * elements} elements, one part per rank"
    )


def not_contiguous(shape: Sequence[int], parts: int) -> str:
    return f"a tensor of {tuple(shape)} that is not contiguous cannot be cut into {parts} parts"


def no_multiple(what: str, length: int, ranks: int) -> str:
    return f"the {what}'s first dimension, {length}, is not a multiple of {ranks} ranks"


def wrong_splits(what: str, sizes: Sequence[int], ranks: int, length: int) -> str:
    return (
        f"the {what}'s split sizes {list(sizes)} do not fit: {ranks} of them have to add up to the first "
        f"dimension, {length}"
    )


def wrong_options(kind: str, given: object) -> str:
    return f"{kind} were expected, not {given!r}"


# Tokens of a torch process group. `variable` is the environment variable that names the token file.


def bad_token_file(variable: str, path: str, why: object) -> str:
    return (
        f"{variable} names {path}, which {why}; let it name a file with a secret, the same on every rank, or "
        "leave it out"
    )


def only_others_have_token(variable: str) -> str:
    return (
        f"another rank has its token from a file and this one has none; set {variable} on every rank to "
        "a file with the same secret, or on none"
    )


def foreign_entry(key: str, path: str | None, variable: str) -> str:
    return (
        f"what lies in torch's store under {key} was not put there by a rank that knows the secret in "
        f"{path}; set {variable} on every rank to a file with the same secret. If that is so, "
        "somebody else writes into the store"
    )


# Ranks that do not come or do not answer. `rank`, `size`: of the one that says it.


def timed_out(rank: int, size: int, whom: str, what: str, limit: float) -> str:
    """`whom`: for which ranks it waited, such as " for rank 1 (host)"; may be empty."""
    return f"rank {rank} of {size} waited{whom} in {what}: its timeout of {limit:g} s is over"


def stopped_answering(rank: int, name: str, limit: float, seconds: float, what: str) -> str:
    return (
        f"rank {rank} ({name}) has not answered for {limit:g} s: it is stopped or cut off; "
        f"noticed after {seconds:.1f} s in {what}"
    )


def store_lost(rank: int, size: int, why: object) -> str:
    return (
        f"rank {rank} of {size} lost the store while the group formed: {why}; "
        "has the process that holds the store (rank 0, or the launcher) ended?"
    )


def rank_missing(rank: int, size: int, missing: str, seconds: float) -> str:
    """`missing`: the ranks that did not come, with commas."""
    return (
        f"rank {rank} of {size} waited {seconds:g} s for rank {missing} to join the group; "
        "is it running, with the same world size and the same store?"
    )


# Point to point


def no_such_peer(what: str, peer: int, *, rank: int, size: int) -> str:
    """`what`: such as "send to"."""
    return f"rank {rank} of {size} cannot {what} rank {peer}"


def tag_too_large(what: str, peer: int | None, tag: int) -> str:
    return f"{what} rank {peer}: the tag {tag} has more than 64 bits"

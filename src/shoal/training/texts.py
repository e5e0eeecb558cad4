"""What users are told about scripts that call `run` in a wrong way, and about checkpoints that do not fit a script.

Tests refer to these texts, so that mending a word breaks none of them. Objects that a text names by their type are
passed as they are.
"""

from __future__ import annotations

from collections.abc import Sequence

# Models and optimizers

MODEL_IN_LOOP = "run.model was called inside a loop over batches; hand models over before it"
OPTIMIZER_TWICE = "run.optimizer was given the same optimizer twice; hand it over once, before the loop"
NO_SECOND_DERIVATIVES = "create_graph=True needs second derivatives, which sync_batchnorm does not have"
CLOSURE_WITH_ACCUMULATE = (
    "optimizer.step(closure) was called in a loop with accumulate; a closure sees one batch only: "
    "use a larger batch_size instead"
)
CLOSURE_WITH_SERVERS = (
    "optimizer.step(closure) was called where servers do the updates; call backward() before step(), or "
    "use --strategy all-reduce"
)


def no_model(given: object) -> str:
    return f"run.model was given a {type(given).__name__}; it takes a torch.nn.Module"


def no_optimizer(given: object) -> str:
    return f"run.optimizer was given a {type(given).__name__}; it takes a torch.optim.Optimizer"


def bad_clip_norm(clip_norm: float) -> str:
    return f"clip_norm is {clip_norm}; it should be above 0"


def parameter_in_no_model(optimizer: int, shape: Sequence[int]) -> str:
    """`optimizer` counts from 1."""
    return (
        f"optimizer {optimizer} has a parameter of shape {list(shape)} that is in no model of run.model, so workers "
        "would not agree on it; write model = run.model(model) first"
    )


def gradient_not_exchanged(shape: Sequence[int]) -> str:
    return (
        f"a gradient of shape {list(shape)} was not exchanged before optimizer.step(); "
        "hand the whole model to run.model before the loop, and thaw its parameters before the batch"
    )


def wrapped_model(wrapper: str, path: str) -> str:
    """`path`: of the module that is the wrapper; empty: the model itself."""
    what = f"a model whose module {path!r} is wrapped" if path else "a model that is wrapped"
    return (
        f"run.model was given {what} in {wrapper}; hand over the plain module, run.model(net): Shoal exchanges "
        "gradients itself"
    )


def wrapped_afterwards(model: str, wrapper: str) -> str:
    return (
        f"{model} was wrapped in {wrapper} after it was given to run.model; use what run.model returns as it is: Shoal "
        "exchanges gradients itself"
    )


# Optimizer steps that workers do not take together

LOOP_FIX = "write `for ... in run.batches(loader, epochs=...)` in place of `for ... in loader`"


def _each_its_own(workers: int) -> str:
    return f"each of the {workers} workers trains a model of its own"


def step_outside_loop(optimizer: str, workers: int) -> str:
    """`optimizer`: class name."""
    return f"{optimizer}.step() was called outside a loop over run.batches, so {_each_its_own(workers)}; {LOOP_FIX}"


def step_without_run(optimizer: str, workers: int) -> str:
    return (
        f"{optimizer}.step() was called before anything was given to run, so {_each_its_own(workers)}; write "
        "model = run.model(model) and optimizer = run.optimizer(optimizer), and loop by "
        "`for ... in run.batches(loader, epochs=...)`"
    )


def optimizer_unknown(optimizer: str, model: str) -> str:
    return (
        f"{optimizer}.step() changes {model}, which was given to run.model, but this optimizer was not given to "
        "run.optimizer: its state is in no checkpoint, and a step that is undone stays applied; write "
        f"optimizer = run.optimizer({optimizer}(...))"
    )


def model_unknown(optimizer: str, workers: int) -> str:
    return (
        f"{optimizer}.step() trains parameters in a loop over run.batches, but no model was given to run.model, so "
        f"{_each_its_own(workers)}; write model = run.model(model), and optimizer = run.optimizer(optimizer)"
    )


def model_forgotten(optimizer: str, shape: Sequence[int]) -> str:
    return (
        f"{optimizer}.step() trains a parameter of shape {list(shape)} that is in no model of run.model: each worker "
        "has values of its own, which are in no checkpoint; if that is not meant, write model = run.model(model) and "
        "optimizer = run.optimizer(optimizer)"
    )


def trained_apart(optimizer: str, shape: Sequence[int], steps: int) -> str:
    return (
        f"{optimizer}.step() was called {steps} times outside loops over run.batches for a parameter of shape "
        f"{list(shape)} that is in no model of run.model: a worker that does so trains values of its own, which are in "
        "no checkpoint; if that is not meant, write model = run.model(model) and optimizer = "
        "run.optimizer(optimizer), and loop by `for ... in run.batches(loader, epochs=...)`"
    )


def trained_outside(steps: int) -> str:
    return (
        f"optimizer.step() was called {steps} times, and no loop over run.batches was run: nothing of this training is "
        f"in a checkpoint, and on several workers it is an error; {LOOP_FIX}"
    )


def not_optimized(model: str, kind: str) -> str:
    """`kind`: class name of the model."""
    return (
        f"{model} ({kind}) gets gradients, but no optimizer given to run.optimizer has any of its parameters: if the "
        "script changes them by hand, a step that is undone after the loss of a worker stays applied; write "
        "optimizer = run.optimizer(optimizer), or freeze the model by model.requires_grad_(False)"
    )


def never_met(workers: int) -> str:
    return (
        f"train has returned without a call of run that workers meet in, so each of the {workers} workers did all of "
        "the work by itself; use run.model, run.optimizer and run.batches, or start the script with -n 1"
    )


# Loops over batches

LOOP_IN_LOOP = "a loop over batches starts while another one is open; finish that one, or leave it by `break`, first"
LOOP_TWICE = "this loop over batches has run; call run.batches again, or ask it for several epochs"
STREAM_LEASED = (
    "the data are a stream of unknown length, which cannot be leased to workers that run free; use "
    "--consistency synchronous, or data with __getitem__ and __len__"
)


def no_option(name: str, nearest: str) -> str:
    """`nearest` says which options there are, or which one was probably meant."""
    return f"run.batches has no option {name!r}; {nearest}"


def bad_collate(collate: object) -> str:
    return f"collate is {collate!r}; it should be a function from a list of samples to a batch"


def bad_count(name: str, count: object) -> str:
    return f"{name} is {count!r}; it should be a whole number, 1 or more"


STREAM_WITHOUT_LENGTH = "the length of a stream is not known before it ends; limit the loop with steps="


def end_of_loop(loop: int, steps: int) -> str:
    """What workers are in where their loop ends."""
    return f"end of loop {loop} after {steps} steps (to end it early, use run.stop)"


def too_flat(dimensions: int) -> str:
    return f"expected at least 2 dimensions, got {dimensions}"


# Calls inside and outside loops

WEIGHT_OUTSIDE_LOOP = "run.weight was called outside a loop over run.batches"
WEIGHT_TOO_LATE = "run.weight was called after backward(); the gradients have been exchanged by then"


def bad_weight(weight: float) -> str:
    return f"run.weight was given {weight}; it should be a finite number, 0 or more"


def bad_mean(given: object) -> str:
    return f"run.mean was given a {type(given).__name__}; it takes a number or a tensor"


def bad_score(name: str, score: object) -> str:
    return (
        f"the function given to run.evaluate returned {type(score).__name__} for {name!r}; "
        "it should return the batch's mean as one number, or a dictionary of such numbers"
    )


def called_while_free(call: str) -> str:
    return (
        f"{call} was called inside a loop whose workers run free, each in another update; call it after the "
        "loop (for every epoch: run.epochs), or use --consistency synchronous"
    )


def not_kept(name: str, thing: object) -> str:
    return f"run.keep({name}=...) was given a {type(thing).__name__}, without state_dict and load_state_dict"


def bad_mark(mark: object) -> str:
    return f"mark is {mark!r}; it should be a short name of letters, digits, '-', '_' and '.', such as 'best'"


# Logging


def log_name_too_long(name: str, longest: int) -> str:
    return f"run.log({name[:40]}...=...) has a name of over {longest} bytes; shorten it"


def too_many_log_names(name: str, most: int) -> str:
    return f"run.log({name}=...) is one more than {most} names; log under fewer of them"


def logged_tensor(name: str, shape: Sequence[int]) -> str:
    return f"run.log({name}=...) was given a tensor of shape {list(shape)}, not one number"


def logged_no_number(name: str, value: object) -> str:
    return f"run.log({name}=...) was given a {type(value).__name__}; it takes numbers"


def no_writer(given: str) -> str:
    return (
        f"run.log_to was given a {given}; it takes a TensorBoard SummaryWriter, a Weights & Biases run, or a "
        "function of a step and a dictionary of values"
    )


# Checkpoints to resume from


def no_checkpoint(place: str, tried: int, reasons: Sequence[str]) -> str:
    """`tried`: how many checkpoints there are. `reasons`: why none of them can be used."""
    what = f"none of the {tried} checkpoints there can be used: {'; '.join(reasons)}" if tried else "there is none"
    return f"no checkpoint to resume from in {place}: {what}; start the job anew"


def checkpoints_unreadable(place: str, why: str) -> str:
    return f"checkpoints in {place} cannot be read: {why}"


def checkpoint_misfits(checkpoint: str, why: str) -> str:
    return (
        f"{checkpoint} does not fit the script: {why}; resume with the script, arguments "
        "and model that it was made with, or start a new job"
    )


def loop_changed(checkpoint: str, changed: tuple[str, str, str], *, loop: int, place: str) -> str:
    """`changed`: the name of what the script says of its loop, the value then and the value now."""
    name, before, now = changed
    return (
        f"{checkpoint} does not fit the script: {name} of loop {loop} was {before} when it was "
        f"made, at {place}, and is {now} now; resume with the data set, the loops and the --seed that it was made "
        "with, or start a new job"
    )


def checkpoint_not_reached(checkpoint: str, *, loops: int, loop: int) -> str:
    """`loops`: that the script had. `loop`: the one in which the checkpoint was made."""
    return (
        f"the script came to its end after {loops} of its loops over data, before loop {loop}, "
        f"where {checkpoint} is: nothing of that checkpoint was loaded, and results that the script printed "
        "come from the record; resume the same script with at least as many epochs, or start a new job"
    )


def more_results_than_recorded(loop: int, *, called: int, recorded: int) -> str:
    return (
        f"the script calls run.mean or run.evaluate {called} times before loop {loop}, "
        f"but the script that made the state called them {recorded} times"
    )


def resume_same_script(difference: str) -> str:
    return f"{difference}; resume the same script"


# States that do not fit a script


def misfits(differences: Sequence[str]) -> str:
    return "; ".join(differences)


def model_not_in_state(model: str) -> str:
    return f"the script has {model}, which the state does not have"


def model_not_in_script(model: str) -> str:
    return f"the state has {model}, which the script does not hand to run.model"


def optimizers_differ(*, in_state: int, in_script: int) -> str:
    return f"the state has {in_state} optimizers and the script {in_script}"


def optimizer_differs(optimizer: int) -> str:
    """`optimizer` counts from 1."""
    return f"optimizer {optimizer} has other parameters, or other groups of them, than in the state"


def kept_not_in_state(names: Sequence[str]) -> str:
    return f"the script keeps {', '.join(names)} (run.keep), which the state does not have"


def only_in_state(tensors: str) -> str:
    return f"{tensors} are only in the state"


def only_in_script(tensors: str) -> str:
    return f"{tensors} are only in the script's model"


def tensor_differs(tensor: str, *, in_state: str, in_script: str) -> str:
    return f"{tensor} is {in_state} in the state and {in_script} in the script's model"


# Advice in the course of a job


def writer_failed(name: str, step: int, error: str) -> str:
    return f"the writer {name} of run.log_to failed at step {step} ({error}); it gets no more values, training goes on"


SAVE_IS_OFF = "run.save makes no checkpoint: checkpoint-every is never"


def not_marked(step: int, mark: str, why: str) -> str:
    return f"the checkpoint of step {step} is not marked as {mark!r}: {why}"


def no_last_checkpoint(difference: object) -> str:
    return f"the last checkpoint is not made, since the workers differ after the last loop: {difference}"


def residual_dropped(codec: str, why: str) -> str:
    return f"what the codec {codec} had left out of gradients is dropped: {why}"


def residual_misfits(checkpoint: str, then: tuple[int, object], now: tuple[int, object, str]) -> str:
    """`then` and `now`: workers and strategy, and the codec of now."""
    return (
        f"{checkpoint} has it of {then[0]} workers with {then[1]}, and {now[0]} go on from there with {now[1]} and the "
        f"codec {now[2]}"
    )


def residual_lost(codec: str, worker: int) -> str:
    return f"what the codec {codec} had left out of the gradients of worker {worker} is lost with it"


def cannot_undo(step: int) -> str:
    return (
        f"step {step} took more optimizer steps than any iteration before it and failed after the first: it can be "
        "neither kept nor undone, so this worker takes another's state"
    )


def updates_lost(step: int, why: str) -> str:
    return f"updates up to step {step} that are in no checkpoint are lost: {why}"


def goes_elsewhere(step: int, taking: str) -> str:
    """`taking`: a `Taking`, in words."""
    return f"the others are at step {step}, elsewhere in the script: this worker {taking.removeprefix('it ')}"


def starts_again(what: str, step: int) -> str:
    """`what`: the script's deed, such as `raised ValueError`."""
    return f"the script {what} in step {step}, which does not count; it starts again from the top"

"""What commands say about a wrong command line, and about files and checkpoints that they cannot use.

Tests refer to these texts, so that mending a word breaks none of them. Not here: what launching says
(`launching.texts`), the --help of each command, and tables that commands print.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from shoal.environment import TOKEN_FILE
from shoal.settings.setting_checks import nearest
from shoal.values import Address

# Commands and options


def see_help(said: str, program: str) -> str:
    return f"{said} (see `{program} --help`)"


def no_command_given(commands: Iterable[str], program: str) -> str:
    return see_help(f"no command given; there is {', '.join(commands)}", program)


def no_such_command(name: str, commands: Iterable[str], program: str) -> str:
    return see_help(f"there is no command {name!r}; {nearest(name, tuple(commands))}", program)


def no_such_option(name: str, options: tuple[str, ...], program: str) -> str:
    return see_help(f"there is no option {name}; {nearest(name, options)}", program)


def wrong_kind(option: str, text: str, kind: str) -> str:
    """`kind`: such as 'a whole number'."""
    return f"--{option} is {text!r}; it should be {kind}"


def given_twice(option: str, before: object, after: object) -> str:
    return f"--{option} is given as {before} and as {after}; give it once"


def switched_on_and_off(option: str) -> str:
    return f"--{option} is switched on and off; give it once"


def not_usable(file: str | None, why: str | None) -> str:
    return f"{file or 'a file'} cannot be used: {why}"


# What takes a while, and what is not there

WRITING_PAGE = "reading the record and writing the page"


def waiting_for_group(address: Address) -> str:
    return f"waiting for the server group at {address}"


def serving(server: int, keeper: Address) -> str:
    return f"server {server} serves the group at {keeper}, until Ctrl-C"


def simulated(share: float) -> str:
    return f"simulated {share:.0%} of the time"


def no_runs(folder: str) -> str:
    return f"no runs in {folder}; `shoal run SCRIPT` makes one"


# Scripts, and workers that join


def no_script(usage: str) -> str:
    return f"no script given; use `{usage}`"


def run_left_out(word: str, command: str) -> str:
    return f"there is no command {word!r}; to train a script, use `{command}`"


def no_modules(module: str, command: str) -> str:
    return f"-m {module}: `shoal run` takes a file, not a module; use `{command}`"


def behind_the_script(option: str, script: str, better: str, meant: str) -> str:
    return (
        f"{option} stands behind {script}, so it would go to the script, which does not mention it; use `{better}`, or "
        f"`{meant}` if it is meant for the script"
    )


def job_has_no_script(coordinator: Address, usage: str) -> str:
    return f"the job at {coordinator} names no script; use `{usage}`"


def function_stays(name: str) -> str:
    return (
        f"this job's function {name} travels only with its launcher, from a notebook's cell or a lambda, and is not on "
        "this machine; give shoal.launch a function in a module that both machines can import"
    )


def other_script(script: str, own: str, job: str) -> str:
    return (
        f"the script {script} is not the job's: its digest is {own[:12]} here and {job[:12]} in the job; copy the "
        "job's script here, or name the script that this worker is to run behind the options of `shoal join`"
    )


def too_few_threads(threads: int) -> str:
    return f"--threads is {threads}; it should be 0 (as the job has it) or more"


def bad_wait(seconds: float) -> str:
    return f"--wait is {seconds:g}; it should be a number of seconds, 0 (no wait) or more"


def no_port(address: str) -> str:
    return f"ADDRESS is {address!r}, without a port; it should be HOST:PORT, as `shoal show RUN` names it"


# Coordinators

TWO_SOCKETS = "--listen-fd and --address are both given; give only one of them"


def needs_run(strategy: str) -> str:
    return (
        f"--strategy {strategy} needs `shoal run`, which starts the servers or opens a name space in a group; add "
        "workers from other machines with `shoal join`"
    )


def settings_not_written(file: Path, why: str | None) -> str:
    return f"the settings cannot be written to {file}: {why}"


def record_unreadable(file: str, why: str | None) -> str:
    return f"{file}, which names the job's script, cannot be read: {why}; name the script"


def no_open_file(descriptor: int, why: str | None) -> str:
    return f"--lock-fd is {descriptor}, which is no open file: {why}"


def no_listening_socket(descriptor: int, why: object) -> str:
    return f"--listen-fd is {descriptor}, which is no listening socket: {why}"


# Parameter servers

NO_TOKEN = f"no token: give --token-file FILE, or name the file in {TOKEN_FILE}"


def bad_server_options(number: int, memory: int, keeper: Address) -> str:
    return (
        f"--number is {number}, --memory {memory} and --keeper {keeper}; the numbers should be 0 or more, and the "
        "address HOST:PORT with a port that is not 0"
    )


def bad_crash_point(text: str, point: str, points: tuple[str, ...]) -> str:
    return f"--crash-at is {text!r}; it should be POINT:N with {nearest(point, points)}, and N from 1 on"


def bad_server_count(count: int, most: int) -> str:
    return f"-n is {count}; one machine starts from 1 to {most} servers"


def bad_replicas(replicas: int, servers: int) -> str:
    return f"--replicas is {replicas} of {servers} servers; it should be from 1 to {servers}"


def too_few_to_add(number: int) -> str:
    return f"N is {number}; it should be a number of servers to add, 1 or more"


def not_made(option: str, path: object, why: str | None) -> str:
    return f"--{option} {path} cannot be made: {why}"


# Kubernetes


def no_image(usage: str) -> str:
    return (
        f"no image given; use `{usage}` with an image that has Python, torch, shoal, a shell and the packages that the "
        "script imports"
    )


def nothing_for_pods(setting: str, why: str) -> str:
    return f"--{setting} has no meaning for pods: {why}; leave it out"


def no_servers_in_pods(strategy: str) -> str:
    return (
        f"--strategy {strategy} needs parameter servers, which `shoal manifests` cannot describe yet; use --strategy "
        "all-reduce"
    )


def behind_dashes(word: str, usage: str) -> str:
    return f"{word!r} stands behind the script; the script's own arguments follow `--`: `{usage}`"


def kept_nowhere(usage: str) -> str:
    return (
        "warning: the job keeps no checkpoints, since pods share no disk; give --checkpoint-to s3://bucket/folder, or "
        f"claim:NAME for a volume claim that all pods may write, as in `{usage}`"
    )


def too_large_to_remember(script: str, size: int) -> str:
    return (
        f"warning: the script {script} has {size:,} bytes, too many for plain `kubectl apply`; use `kubectl apply "
        "--server-side -f -`"
    )


def output_there(path: str) -> str:
    return f"--output {path} is already there; name another file, or remove it"


# Runs and their checkpoints


def no_folder_of_runs(folder: Path) -> str:
    return f"the folder {folder} does not exist; name one that holds run directories"


def run_not_written(path: Path, why: object) -> str:
    return f"{path} cannot be written: {why}"


def checkpoints_unusable(place: str, error: OSError) -> str:
    file = f" ({error.filename})" if error.filename else ""
    return f"the checkpoints in {place} cannot be used: {error.strerror or error}{file}"


def none_published(place: str) -> str:
    return f"there is no published checkpoint in {place}"


def no_such_checkpoint(text: str, place: str, known: tuple[str, ...]) -> str:
    return f"there is no checkpoint {text!r} in {place}; {nearest(text, known)}"


def damaged(names: Sequence[str], count: int, place: str, *, usable: str | None) -> str:
    """`names` of `count` checkpoints; `usable`: the newest that is whole."""
    after = f"a resumed job uses {usable}" if usable is not None else "none is left to resume from"
    return (
        f"{len(names)} of {count} checkpoints in {place} cannot be used: {', '.join(names)}; {after}; "
        "put the damaged files back from a copy, or remove those folders"
    )


def no_mark(text: str) -> str:
    return f"--mark is {text!r}; it should be NAME=LABEL, such as step-00000200-g1=best"


def marks_nothing(label: str, labels: tuple[str, ...]) -> str:
    return f"--unmark is {label!r}, which marks nothing; {nearest(label, labels) if labels else 'no mark does'}"


# Exporting a model


def no_such_format(text: str, formats: tuple[str, ...]) -> str:
    return f"--format is {text!r}; {nearest(text, formats)}"


def name_another(said: object) -> str:
    return f"{said}; name another with --checkpoint (see `shoal checkpoints`)"


def already_there(path: Path) -> str:
    return f"{path} is already there; name another with --to, or replace it with --force"


def no_model(checkpoint: str) -> str:
    return f"{checkpoint} has no model; was one handed to run.model?"


def no_such_model(name: str, models: tuple[str, ...]) -> str:
    return f"--model is {name!r}; {nearest(name, models)}"


# Simulating a cluster


def replay_and_more(option: str) -> str:
    return f"--replay takes everything from its seed; leave --{option} out"


def option_missing(option: str) -> str:
    return f"--{option} is missing; try: shoal simulate --nodes 1000 --mtbf 6h"

"""What users are told about settings that cannot work: one value, several together, a file, an installed package.

Tests refer to these texts, so that mending a word breaks none of them. Also here: the texts of `job_config`. Names of
settings are given as on the command line, without the dashes.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

# One value


def did_you_mean(name: str) -> str:
    return f"did you mean {name!r}?"


def there_is(names: Iterable[str]) -> str:
    return f"there is {', '.join(names)}"


def not_one_of(name: str, value: str, hint: str) -> str:
    """`hint`: either of the two above."""
    return f"--{name} is {value!r}; {hint}"


def out_of_range(name: str, value: float, lowest: float, highest: float, unit: str = "") -> str:
    return f"--{name} is {value}; it should be from {lowest} to {highest}{unit and f' {unit}'}"


def bad_workers(workers: int, most: int) -> str:
    return f"--workers is {workers}; a job needs at least 1 and has at most {most}"


def bad_workers_range(text: str) -> str:
    return f"--workers is {text!r}; it should be a number, or MIN:MAX such as 2:8"


def bad_min_workers(min_workers: int, workers: int) -> str:
    return f"--min-workers is {min_workers} of {workers} workers; it should be from 0 to {workers}"


def bad_seed(seed: int) -> str:
    return f"--seed is {seed}; it should be from 0 to 2^63-1"


def bad_threads(threads: int) -> str:
    return f"--threads is {threads}; it should be 0 (divide the cores) or more"


def bad_digest_every(steps: int) -> str:
    return f"--digest-every is {steps}; it should be 0 (never) or more steps"


def bad_checkpoint_every(text: str) -> str:
    return f"--checkpoint-every is {text!r}; it should be a number of steps (200), seconds (30s), end or never"


def bad_size(named: str, text: str) -> str:
    """`named`: with its dashes."""
    return f"{named} is {text!r}; it should be a size such as 2GB, 512MB or 1.5GiB"


def bad_bucket_mb(megabytes: float) -> str:
    return f"--bucket-mb is {megabytes}; it should be above 0 and at most 1024"


def bad_codec(text: str) -> str:
    return f"--codec is {text!r}; it should be NAME, or NAME:SETTING=VALUE,SETTING=VALUE,..."


def bad_server_count(servers: str, most: int) -> str:
    return f"--servers is {servers}; one machine starts from 1 to {most}"


def bad_servers(text: str) -> str:
    return (
        f"--servers is {text!r}; it should be a number of servers to start (3), or HOST:PORT of a group that runs, as "
        "`shoal servers start` prints it"
    )


def bad_staleness(text: str) -> str:
    return (
        f"--staleness is {text!r}; it should be a whole number of updates, 0 or more: 0 lets no worker ahead of "
        "another, and --consistency asynchronous without --staleness has no bound"
    )


def bad_noise(noise: float) -> str:
    return f"--noise is {noise}; it should be a standard deviation of 0 (none) or more"


# Settings that do not go together. `given`: the setting with its value, as `KindSettings.given` writes it.

NO_SERVERS = (
    "--strategy parameter-server has no servers: give --servers 2 to start two, or --servers HOST:PORT of a group that "
    "`shoal servers start` runs; without servers, take --strategy all-reduce"
)
NO_HOSTS = (
    "--on ssh has no hosts: give --hosts FILE, a TOML file with a table for each host, such as [node1] with slots = 4"
)


def hosts_without_ssh(hosts: str) -> str:
    return f"--hosts {hosts} is for --on ssh; add --on ssh, or leave --hosts out"


def bad_nodes(text: str, most: int) -> str:
    return f"--nodes is {text!r}; it should be a number of nodes, or MIN:MAX such as 2:8, from 1 to {most}"


def bad_time(text: str) -> str:
    return (
        f"--time is {text!r}; it should be a time such as 4h, 30m or 1h30m, or one of Slurm's forms, such as 4:00:00 "
        "or 1-12"
    )


def bad_slurm_options(text: str, why: str) -> str:
    return f"--slurm is {text!r}, and {why}; it should hold options of salloc, such as 'partition=gpu account=lab'"


def bad_spark_properties(text: str, why: str) -> str:
    return (
        f"--spark is {text!r}, and {why}; it should hold properties of Spark, such as 'master=spark://node1:7077 "
        "executor.memory=4g'"
    )


def bad_spark_wait(value: str) -> str:
    return f"--spark has wait={value}; it should be a time such as 10m, 1h or 90s"


def only_with_spark(value: str) -> str:
    return f"--spark {value} is for --on spark; add that, or leave --spark out"


def bad_ray_wish(text: str, why: str) -> str:
    return (
        f"--ray is {text!r}, and {why}; it should say what each worker gets and how long to wait for it, such as "
        "'cpus=2 gpus=1 memory=8G wait=10m'"
    )


def only_with_ray(value: str) -> str:
    return f"--ray {value!r} goes with --on ray; leave it out, or add --on ray"


def only_with_slurm(name: str, value: str) -> str:
    needed = "--on slurm" if name == "nodes" else "--on slurm with --nodes, which asks for an allocation"
    return f"--{name} {value} is for {needed}; add that, or leave --{name} out"


GROUP_THAT_RUNS = "a group that runs (--servers HOST:PORT)"
SERVERS_OF_THE_JOB = "servers of the job's own (--servers 2)"


def carrier_has_own_schedules(carrier: str, schedule: str, codec: str) -> str:
    return (
        f"--schedule {schedule} and --codec {codec} do not go with --carrier {carrier}, which has schedules of its "
        "own; leave them out, or take --carrier shoal"
    )


def workers_exchange_nothing(given: str, strategy: str) -> str:
    return (
        f"{given} does not go with --strategy {strategy}, where workers exchange nothing with each other; leave it "
        "out, or take --strategy all-reduce"
    )


def for_another_strategy(given: str, name: str, strategy: str) -> str:
    return f"{given} is for another strategy than {strategy}; leave --{name} out"


def for_another_engine(given: str, name: str, engine: str) -> str:
    return f"{given} is for another engine than {engine}; leave --{name} out"


def for_parameter_servers(given: str, name: str, strategy: str) -> str:
    return (
        f"{given} is for --strategy parameter-server, and the strategy is {strategy}; add --strategy parameter-server, "
        f"or leave --{name} out"
    )


def strategy_pushes_nothing(given: str, strategy: str) -> str:
    return (
        f"{given} is for asynchronous pushes, and --strategy {strategy} has none; take --strategy parameter-server "
        "--servers 2 --consistency asynchronous"
    )


def for_asynchronous_pushes(given: str) -> str:
    return (
        f"{given} is for asynchronous pushes and does not go with --consistency synchronous; take --consistency "
        "asynchronous"
    )


def nobody_is_ahead(staleness: str) -> str:
    return (
        f"--staleness {staleness} does not go with --consistency synchronous, where nobody is ever ahead; leave one of "
        "them out"
    )


def too_few_servers(replicas: int, servers: int) -> str:
    return (
        f"--replicas is {replicas}, but each replica of a parameter is on a server of its own, and there are "
        f"{servers}: give --servers {replicas} or more, or --replicas {servers}"
    )


def no_servers_token(servers: str) -> str:
    return f"--servers {servers} needs --servers-token FILE: the file that `shoal servers start` has named"


def for_other_servers(given: str, whose: str, servers: str) -> str:
    """`whose`: GROUP_THAT_RUNS or SERVERS_OF_THE_JOB."""
    return f"{given} is for {whose}; with --servers {servers} leave it out"


# Settings that a script gives to `shoal.main`. `given`: as in Python, such as workers=2; `command`: a whole command.


def not_alone(given: str, command: str) -> str:
    return (
        f"shoal.main is given {given}, which a script that runs alone cannot honour: it starts no other processes; "
        f"run `{command}`, or leave it out of shoal.main"
    )


def not_of_this_job(given: str, has: str, command: str) -> str:
    """`has`: the job's value, as in Python."""
    return (
        f"shoal.main is given {given}, but the job was started with {has}, which a script cannot change; leave it out "
        f"of shoal.main, and start the job with `{command}` where that is what you want"
    )


def resume_in_job(given: str, command: str) -> str:
    return (
        f"shoal.main is given {given}, but `shoal run` has started a new job, which cannot go on with another; run "
        f"`{command}` to go on, or give --resume= to start anew"
    )


def not_honoured(given: str, has: str, command: str) -> str:
    return f"shoal.main is given {given}, but the job has {has}, which stays; `{command}` sets it"


# Names and files. `origin`: where the settings stand, such as 'the command line' or a file's path.


def set_twice(origin: str, name: str) -> str:
    """`name`: as in Python, with underscores."""
    return f"{origin} sets {name!r} and {name.replace('_', '-')!r}, which are one setting; leave one out"


def no_setting(origin: str, name: str, hint: str) -> str:
    return f"{origin} sets {name!r}, which is no setting; {hint}"


def wrong_type(origin: str, what: str) -> str:
    """`what`: the setting, what was expected and what was given."""
    return f"{origin}: {what}"


def config_missing(path: Path) -> str:
    return f"the configuration file {path} does not exist"


def config_unreadable(path: Path, why: str | None) -> str:
    return f"the configuration file {path} cannot be read: {why}"


def not_toml(origin: str, why: ValueError) -> str:
    return f"{origin} is not TOML: {why}"


def config_not_toml(path: Path, why: ValueError) -> str:
    return not_toml(f"the configuration file {path}", why)


# Strategies and engines of installed packages. `word`: strategy or engine. `entry`: MODULE:OBJECT of the entry point.


def kind_fails_to_load(word: str, name: str, entry: str, error: Exception) -> str:
    return f"the {word} {name!r} of {entry} cannot be loaded: {error or repr(error)}"


def no_such_kind(word: str, name: str, entry: str, kind: str) -> str:
    """`kind`: the class that it should have."""
    return f"{entry}, which is offered as the {word} {name!r}, is no {kind} of that name"


def setting_taken(word: str, kind: str, name: str, owner: str) -> str:
    """`owner`: the class of settings that has it."""
    return (
        f"the {word} {kind!r} has a setting {name!r}, which {owner} has too; give the setting another name, or share "
        "those settings"
    )

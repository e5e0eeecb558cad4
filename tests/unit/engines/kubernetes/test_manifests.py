"""Documents for Kubernetes: whatever goes in, they fit the published schemas, and the token is in the Secret alone."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from shoal.engines.kubernetes import texts
from shoal.engines.kubernetes.cluster_job import (
    MOST_NAME,
    MOST_SCRIPT,
    ClusterJob,
    PodScript,
    SharedPlace,
    Upkeep,
    WorkerResources,
    check_label,
    name_from,
    shared_place,
)
from shoal.engines.kubernetes.manifests import SCRIPT_KEY, TOKEN_FILE, escaped, render, script_path
from shoal.engines.kubernetes.yaml_text import documents
from shoal.errors import UsageError
from support.kubernetes_schemas import complaints
from support.pods import contents, expanded

TOKEN = "0123456789abcdef" * 4
VERSIONS = ("1.31", "1.33", "1.37")  # the oldest that has all fields, one in between, the newest with a schema here
JOB = ClusterJob(
    name="train",
    namespace="",
    image="registry.example/train:1",
    run="20260101-000000-train",
    workers=8,
    settings=("--workers=2:8",),
    script=PodScript("train.py", b"print(1)\n"),
    place=SharedPlace(),
)

words = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
labels = st.from_regex(r"\A[a-z]([-a-z0-9]{0,48}[a-z0-9])?\Z")
object_names = st.from_regex(r"\A[a-z0-9]{1,5}(-[a-z0-9]{1,5}){0,2}(\.[a-z0-9]{1,5}){0,2}\Z")
scripts = st.one_of(
    st.builds(PodScript, words, st.one_of(words.map(str.encode), st.binary(max_size=50)), st.tuples(words)),
    st.builds(lambda name, rest: PodScript(f"/{name}x", None, (rest,)), words, words),
)
places = st.one_of(
    st.just(SharedPlace()),
    st.just(SharedPlace(url="s3://bucket/a b")),
    st.builds(
        lambda claim, folder: SharedPlace(claim=claim, folder=folder), object_names, st.sampled_from(["", "a/b"])
    ),
)
cpus = st.one_of(st.integers(1, 999_999).map(str), st.integers(1, 10**6).map("{}m".format), st.just("1.5"))
memories = st.builds("{}{}".format, st.integers(1, 10**9), st.sampled_from(["", "k", "M", "Mi", "Gi", "Ti"]))
jobs = st.builds(
    ClusterJob,
    name=labels,
    namespace=st.one_of(st.just(""), labels),
    image=st.from_regex(r"\A[a-z0-9][A-Za-z0-9._:/@-]{0,30}\Z"),
    run=labels,
    workers=st.integers(1, 10_000),
    settings=st.lists(words.map("--strategy={}".format), max_size=3).map(tuple),
    script=scripts,
    place=places,
    threads=st.integers(0, 64),
    resources=st.builds(WorkerResources, cpus, memories, st.integers(0, 64)),
    upkeep=st.builds(
        Upkeep,
        st.integers(1, 86400),
        st.integers(1, 10**9),
        st.one_of(st.just(""), object_names),
        st.one_of(st.just(""), object_names),
    ),
)


def plain(rendered: object) -> Any:
    """As JSON has it: no tuples."""
    return json.loads(json.dumps(rendered))


def container(job: ClusterJob, name: str) -> Mapping[str, Any]:
    for each in plain(render(job, TOKEN)):
        if each["kind"] == "Job":
            [found] = each["spec"]["template"]["spec"]["containers"]
            if found["name"] == name:
                return dict(found)
    raise AssertionError(name)


def texts_in(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, entry in value.items():
            yield str(name)
            yield from texts_in(entry)
    elif isinstance(value, list | tuple):
        for entry in value:
            yield from texts_in(entry)


@given(jobs)
def test_every_document_fits_the_published_schemas(job: ClusterJob) -> None:
    for document in plain(render(job.checked(), TOKEN)):
        for version in VERSIONS:
            assert not complaints(document, version)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_schemas_refuse_what_no_cluster_would_take(version: str) -> None:
    *_, workers = plain(render(JOB, TOKEN))
    workers["spec"]["completionMod"] = workers["spec"].pop("completionMode")
    workers["spec"]["template"]["spec"]["containers"][0]["command"] = "shoal"
    assert len(complaints(workers, version)) == 2


@given(jobs)
def test_the_token_is_in_the_secret_and_nowhere_else(job: ClusterJob) -> None:
    secret, *others = render(job, TOKEN)
    assert secret["kind"] == "Secret"
    assert secret["stringData"] == {"token": TOKEN}
    assert not [text for text in texts_in(others) if TOKEN in text]


@given(jobs)
def test_the_yaml_loads_back_to_the_same_documents(job: ClusterJob) -> None:
    rendered = render(job, TOKEN)
    assert list(yaml.safe_load_all(documents(rendered))) == plain(rendered)


json_values = st.recursive(
    st.one_of(st.text(st.characters(exclude_categories=["Cs"])), st.integers(), st.booleans()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=10,
).filter(lambda value: not nested_lists(value))


def nested_lists(value: object) -> bool:
    """Lists directly in lists, which documents do not have."""
    if isinstance(value, dict):
        return any(map(nested_lists, value.values()))
    return isinstance(value, list) and any((isinstance(each, list) and each) or nested_lists(each) for each in value)


@given(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=9), json_values, min_size=1))
@example({"a": "one\ntwo\n", "b": "one\n\n  two", "c": "\n one", "d": "one\n\n", "e": "no", "f": "1e3", "g": "a\n \nb"})
@example({"y": "\x85\u2028\ufeff\x7f", "12": "0o7", "~": "~", "a": [{"b": []}, {}, "- c"], "t": "a\tb\n\tc\n"})
def test_any_text_survives_yaml(document: dict[str, Any]) -> None:
    assert list(yaml.safe_load_all(documents([document, document]))) == [document, document]


@given(st.text(st.characters(exclude_categories=["Cs"])))
@example("$(HOME) $$ $")
def test_kubernetes_replaces_nothing_in_a_command_line(word: str) -> None:
    assert expanded(escaped(word), {"HOME": "/tmp"}) == word


@given(scripts)
def test_the_script_arrives_byte_for_byte(script: PodScript) -> None:
    job = replace(JOB, script=script)
    maps = [document for document in render(job, TOKEN) if document["kind"] == "ConfigMap"]
    if script.content is None:
        assert not maps
        assert script_path(job) == script.path
    else:
        assert contents(maps[0])[SCRIPT_KEY] == script.content
        assert re.fullmatch(r"/opt/shoal/script/[\w.-]+", script_path(job))


def test_pods_read_the_token_from_a_private_file_and_run_as_nobody_special() -> None:
    for document in render(JOB, TOKEN):
        if document["kind"] != "Job":
            continue
        pod = plain(document)["spec"]["template"]["spec"]
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        assert volumes["secret"]["secret"] == {"secretName": "train-token", "defaultMode": 0o400}
        assert volumes["token"]["emptyDir"]["medium"] == volumes["shm"]["emptyDir"]["medium"] == "Memory"
        [made] = pod["containers"]
        assert "secret" not in [mount["name"] for mount in made["volumeMounts"]]
        assert f"--token-file={TOKEN_FILE}" in made["command"]
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["restartPolicy"] == "Never"
        assert pod["terminationGracePeriodSeconds"] == 120
        for each in (made, *pod["initContainers"]):
            assert each["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
            assert {*each["resources"]["requests"]} == {*each["resources"]["limits"]} == {"cpu", "memory"}


def test_the_service_leads_to_the_coordinator_under_the_name_that_workers_use() -> None:
    _secret, _script, service, coordinator, workers = plain(render(JOB, TOKEN))
    labels = coordinator["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    assert not service["spec"]["selector"].items() <= workers["spec"]["template"]["metadata"]["labels"].items()
    assert service["spec"]["clusterIP"] == "None"
    [port] = service["spec"]["ports"]
    assert container(JOB, "worker")["command"][2] == f"{service['metadata']['name']}:{port['port']}"
    assert f"--address=0.0.0.0:{port['port']}" in container(JOB, "coordinator")["command"]


def test_a_worker_that_is_lost_is_replaced_and_one_that_is_done_ends_the_job() -> None:
    *_, coordinator, workers = plain(render(JOB, TOKEN))
    spec = workers["spec"]
    assert (spec["parallelism"], spec["completions"], spec["completionMode"]) == (8, 8, "Indexed")
    assert spec["successPolicy"] == {"rules": [{"succeededCount": 1}]}
    assert spec["podFailurePolicy"]["rules"][0]["action"] == "Ignore"
    assert coordinator["spec"]["backoffLimit"] == 0  # its decisions are gone with its pod


def test_a_coordinator_whose_decisions_are_on_a_volume_is_replaced_unless_the_job_has_ended() -> None:
    job = replace(JOB, place=SharedPlace(claim="runs", folder="team"))
    *_, coordinator, workers = plain(render(job, TOKEN))
    assert coordinator["spec"]["backoffLimit"] > 0
    ended = coordinator["spec"]["podFailurePolicy"]["rules"][0]
    assert ended["action"] == "FailJob"
    assert {1, 3, 143} <= {*ended["onExitCodes"]["values"]}
    assert not {0, 2, 70, 137} & {*ended["onExitCodes"]["values"]}
    assert "--run-dir=/var/lib/shoal/team/20260101-000000-train" in container(job, "coordinator")["command"]
    for each in (coordinator, workers):
        volumes = each["spec"]["template"]["spec"]["volumes"]
        assert {"name": "runs", "persistentVolumeClaim": {"claimName": "runs"}} in volumes


def test_resources_and_what_follows_from_them() -> None:
    job = replace(JOB, resources=WorkerResources("3500m", "16Gi", 1))
    made = container(job, "worker")
    amounts = {"cpu": "3500m", "memory": "16Gi", "nvidia.com/gpu": "1"}
    assert made["resources"] == {"requests": amounts, "limits": amounts}
    assert "--threads=3" in made["command"]
    assert "--threads=7" in container(replace(job, threads=7), "worker")["command"]


@given(words)
@example("Train GPT.py")
@example("2024_run.py")
def test_a_name_made_from_a_script_is_a_name_for_kubernetes(script: str) -> None:
    try:
        name = name_from(script)
    except UsageError as error:
        assert str(error) == texts.no_name_in(script)
    else:
        check_label("name", name, MOST_NAME)


@pytest.mark.parametrize(
    ("script", "name"),
    [
        ("train.py", "train"),
        ("a/b/Train_GPT.v2.py", "train-gpt-v2"),
        ("2024_run.py", "run"),
        (f"{'a' * 80}.py", "a" * 50),
    ],
)
def test_names_made_from_scripts(script: str, name: str) -> None:
    assert name_from(script) == name


@pytest.mark.parametrize(
    ("job", "said"),
    [
        (replace(JOB, name="Train"), texts.bad_name("name", "Train", MOST_NAME)),
        (replace(JOB, name="a" * 51), texts.bad_name("name", "a" * 51, MOST_NAME)),
        (replace(JOB, namespace="-a"), texts.bad_name("namespace", "-a", 63)),
        (replace(JOB, image="a b"), texts.bad_image("a b")),
        (replace(JOB, script=PodScript("train.py", b"#" * (MOST_SCRIPT + 1))), "put it into the image"),
        (replace(JOB, script=PodScript("train.py", None)), texts.not_in_the_image("train.py")),
        (replace(JOB, script=PodScript("a.py", b"", ("\udcff",))), texts.no_plain_text("\udcff")),
        (replace(JOB, resources=WorkerResources(cpu="0")), texts.bad_cpu("0")),
        (replace(JOB, resources=WorkerResources(memory="8GB")), texts.bad_memory("8GB")),
        (replace(JOB, resources=WorkerResources(gpus=-1)), texts.not_between("gpus", -1, 0, 64)),
        (replace(JOB, upkeep=Upkeep(grace=0)), texts.not_between("grace", 0, 1, 86400)),
        (replace(JOB, upkeep=Upkeep(secret="A_B")), texts.bad_name("env-from", "A_B", 253)),
    ],
)
def test_what_kubernetes_would_refuse_is_refused_first(job: ClusterJob, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        job.checked()
    assert said in str(caught.value)


def test_where_checkpoints_go() -> None:
    assert shared_place("") == SharedPlace()
    assert shared_place("s3://bucket/a") == SharedPlace(url="s3://bucket/a")
    assert shared_place("claim:runs") == SharedPlace(claim="runs")
    assert shared_place("claim:runs/a/b") == SharedPlace(claim="runs", folder="a/b")


@pytest.mark.parametrize("place", ["claim:", "claim:Runs", "claim:a/../b", "claim:a/", "claim:a//b"])
def test_claims_that_are_none(place: str) -> None:
    with pytest.raises(UsageError) as caught:
        shared_place(place)
    assert str(caught.value) == texts.bad_claim(place)


@pytest.mark.parametrize("place", ["/mnt/runs", "runs", "file:///mnt", "memory://a"])
def test_folders_of_one_pod_are_no_place_for_checkpoints(place: str) -> None:
    with pytest.raises(UsageError) as caught:
        shared_place(place)
    assert str(caught.value) == texts.no_shared_folder(place)

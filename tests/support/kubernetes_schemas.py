"""The schemas that Kubernetes publishes, from the package kubernetes-validate. Reading one takes a while: once each."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from jsonschema import Draft202012Validator
from kubernetes_validate.utils import schema_contents
from referencing import Registry, Resource


def complaints(document: Mapping[str, Any], version: str) -> list[str]:
    """What a cluster of that version would refuse in a document; unknown fields too."""
    found = _validator(document["kind"], document["apiVersion"], version).iter_errors(document)
    return [f"{error.json_path}: {error.message}" for error in found]


@functools.cache
def _validator(kind: str, api: str, version: str) -> Draft202012Validator:
    schema = _schema(f"{kind.lower()}-{api.replace('/', '-')}", version)
    registry = Resource.from_contents(_schema("_definitions", version)) @ Registry()
    return Draft202012Validator(schema, registry=Resource.from_contents(schema) @ registry)


@functools.cache
def _schema(name: str, version: str) -> Any:
    return schema_contents(f"kubernetes-json-schema/v{version}.0-local-strict/{name}.json", version)

"""Manifests against the schemas of Kubernetes and of the custom resources. Runs under the tools' own Python.

Reads lines, each a JSON array of files of YAML documents, until its input ends. Writes a line of JSON for each, with
what each file has: its documents, and what is wrong with them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate
import yaml
from cloudcoil.models.keda import v1alpha1 as keda
from cloudcoil.models.prometheus_operator import v1 as monitoring
from kubernetes_validate import utils
from pydantic import ValidationError

KUBERNETES = "1.37"
# Otherwise three megabytes of definitions are parsed for every document.
utils.schema_contents = cache(utils.schema_contents)
_CUSTOM = {
    "keda.sh/v1alpha1": keda,
    "monitoring.coreos.com/v1": monitoring,
}


def problems(document: dict[str, Any]) -> Iterator[str]:
    """What the API server would refuse, or drop silently."""
    name = f"{document['kind']}/{document['metadata']['name']}"
    models = _CUSTOM.get(document["apiVersion"])
    if models is None:
        try:
            kubernetes_validate.validate(document, KUBERNETES, strict=True)
        except kubernetes_validate.ValidationError as error:
            yield f"{name}: {'.'.join(map(str, error.path))}: {error.message}"
        except kubernetes_validate.SchemaNotFoundError as error:
            yield f"{name}: {error}"
        return
    try:
        # The models are those of the CRDs; what they do not know they drop, so it is missed afterwards.
        known = getattr(models, document["kind"]).model_validate(document)
    except ValidationError as error:
        yield f"{name}: {error}"
    else:
        kept = json.loads(known.model_dump_json(by_alias=True, exclude_unset=True))
        yield from (f"{name}: {path}: unknown" for path in dropped(document, kept))


def dropped(given: Any, kept: Any, path: str = "") -> Iterator[str]:
    """Paths in `given` that are not in `kept`."""
    if isinstance(given, dict) and isinstance(kept, dict):
        for key, value in given.items():
            yield from dropped(value, kept[key], f"{path}.{key}") if key in kept else [f"{path}.{key}"]
    elif isinstance(given, list) and isinstance(kept, list):
        for number, (value, other) in enumerate(zip(given, kept, strict=True)):
            yield from dropped(value, other, f"{path}[{number}]")


@cache
def problems_of(document: str) -> list[str]:
    """Once for documents that are the same in several files."""
    return list(problems(json.loads(document)))


def read(file: str) -> dict[str, Any]:
    """One file's documents and problems."""
    documents = [each for each in yaml.load_all(Path(file).read_text(), yaml.CSafeLoader) if each]
    return {"documents": documents, "problems": [each for one in documents for each in problems_of(json.dumps(one))]}


if __name__ == "__main__":
    for asked in sys.stdin:
        print(json.dumps({file: read(file) for file in json.loads(asked)}, default=str), flush=True)

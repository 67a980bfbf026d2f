"""What Helm makes of a chart and its values, and the parts of it that tests look at.

HELM names the program (`helm` by default), KUBERNETES_VALIDATE a Python that has kubernetes-validate.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import typer
import yaml

from wire.runtime.cli import application

CHARTS = Path(__file__).parents[2] / "helm"
HELM = os.environ.get("HELM", "helm")
VALIDATOR = os.environ.get("KUBERNETES_VALIDATE", sys.executable)
MATRIX = [
    (path.parent.parent.name, path.name.removesuffix("-values.yaml"))
    for path in sorted(CHARTS.glob("*/ci/*-values.yaml"))
]
GUIDE = "docs/deploy-kubernetes.md"
LEAST = {"coordinator": "sqlite", "silo": "cpu"}

Manifest = dict[str, Any]


def helm(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [HELM, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@cache
def rendered(chart: str, values: str) -> tuple[Manifest, ...]:
    file = CHARTS / chart / "ci" / f"{values}-values.yaml"
    outcome = helm("template", "north", CHARTS / chart, "-f", file, "-n", "hospital")
    assert outcome.returncode == 0, outcome.stderr
    return tuple(one for one in yaml.safe_load_all(outcome.stdout) if one)


def overridden(
    folder: Path, chart: str, override: str, release: str = "north", charts: Path = CHARTS
) -> subprocess.CompletedProcess[str]:
    """The least values with `override` on top."""
    file = folder / "override.yaml"
    file.write_text(override)
    least = CHARTS / chart / "ci" / f"{LEAST[chart]}-values.yaml"
    return helm("template", release, charts / chart, "-f", least, "-f", file)


def changed(
    folder: Path, chart: str, override: str, release: str = "north"
) -> tuple[Manifest, ...]:
    """The objects of the least values with `override` on top."""
    outcome = overridden(folder, chart, override, release)
    assert outcome.returncode == 0, outcome.stderr
    return tuple(one for one in yaml.safe_load_all(outcome.stdout) if one)


def refusal(folder: Path, chart: str, override: str) -> str:
    """What Helm says of the least values with `override` on top; fails if it takes them."""
    outcome = overridden(folder, chart, override)
    assert outcome.returncode != 0, f"{override!r} was taken"
    return outcome.stderr


def of_kind(manifests: tuple[Manifest, ...], *kinds: str) -> list[Manifest]:
    return [one for one in manifests if one["kind"] in kinds]


def named(manifests: tuple[Manifest, ...], kind: str, name: str) -> Manifest:
    return next(one for one in of_kind(manifests, kind) if one["metadata"]["name"] == name)


def templates(manifests: tuple[Manifest, ...]) -> Iterator[tuple[str, Manifest]]:
    """Name and pod template of everything that starts pods."""
    for one in of_kind(manifests, "Deployment", "StatefulSet", "Job"):
        yield one["metadata"]["name"], one["spec"]["template"]


def containers(pod: Manifest) -> list[Manifest]:
    return [*pod.get("initContainers", []), *pod["containers"]]


def selects(selector: Manifest, labels: dict[str, str]) -> bool:
    """Kubernetes' rule: every matchLabels and every matchExpressions holds."""
    equal = all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items())
    return equal and all(holds(one, labels) for one in selector.get("matchExpressions", []))


def holds(expression: Manifest, labels: dict[str, str]) -> bool:
    """One matchExpression. An absent label is in no set, so NotIn holds for it."""
    key, values = expression["key"], expression.get("values", [])
    match expression["operator"]:
        case "In":
            return key in labels and labels[key] in values
        case "NotIn":
            return key not in labels or labels[key] not in values
        case "Exists":
            return key in labels
        case "DoesNotExist":
            return key not in labels
        case other:
            raise ValueError(f"Kubernetes knows no operator {other!r}")


def policies_for(manifests: tuple[Manifest, ...], labels: dict[str, str]) -> dict[str, Manifest]:
    return {
        one["metadata"]["name"]: one["spec"]
        for one in of_kind(manifests, "NetworkPolicy")
        if selects(one["spec"]["podSelector"], labels)
    }


def understood(words: list[str]) -> None:
    """Fails unless `consilium` has this command with these options."""
    command: Any = typer.main.get_command(application(words))
    rest = list(words)
    while hasattr(command, "commands"):
        if not rest and command.invoke_without_command:
            break
        assert rest[0] in command.commands, words
        command, rest = command.commands[rest[0]], rest[1:]
    known = {option for parameter in command.params for option in parameter.opts}
    for word in rest:
        assert not word.startswith("--") or word.split("=")[0] in known, (words, word)

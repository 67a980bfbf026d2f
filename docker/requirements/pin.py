"""Pins for each image: everything its extras need, in the versions of this environment, which are the versions the tests ran with.

`python docker/requirements/pin.py` writes `coordinator.txt`, `agent.txt`, `trainer.txt` and `build.txt` beside itself and asks no index.
With `--gpu` it writes `trainer-gpu.txt` alone: it asks the index which CUDA wheels go with the trainer's pins, and downloads none of them.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Iterator
from importlib.metadata import distribution, version
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import NormalizedName, canonicalize_name
from packaging.version import Version

HERE = Path(__file__).parent
PYPROJECT = HERE.parents[1] / "pyproject.toml"
EXTRAS = {
    "agent": (),
    "coordinator": ("coordinator", "postgres"),
    "trainer": ("trainer", "xgboost", "rules", "ebm", "torch"),
}

CUDA = {canonicalize_name("xgboost-cpu"): canonicalize_name("xgboost")}

Pins = dict[NormalizedName, Version]


def direct(image: str) -> list[Requirement]:
    """What pyproject.toml asks for in this image; for `build`, what makes our wheel."""
    about = tomllib.loads(PYPROJECT.read_text())
    if image == "build":
        return [Requirement(line) for line in about["build-system"]["requires"]]
    project = about["project"]
    asked, extras = list(project["dependencies"]), list(EXTRAS[image])
    for extra in extras:
        for line in project["optional-dependencies"][extra]:
            requirement = Requirement(line)
            if requirement.name == project["name"]:
                extras += sorted(requirement.extras - set(extras))
            else:
                asked.append(line)
    return [Requirement(line) for line in asked]


def needed(asked: Iterable[Requirement]) -> Iterator[Requirement]:
    """`asked` and what they need in turn, by what is installed here; markers are those of this machine."""
    waiting, seen = list(asked), set()
    while waiting:
        requirement = waiting.pop()
        yield requirement
        for extra in ("", *requirement.extras):
            if (requirement.name, extra) in seen:
                continue
            seen.add((requirement.name, extra))
            for line in distribution(requirement.name).requires or ():
                further = Requirement(line)
                if further.marker is None or further.marker.evaluate({"extra": extra}):
                    waiting.append(further)


def installed(asked: Iterable[Requirement]) -> Pins:
    """The version of each. Torch's says `+cpu`: PyPI's `2.13.0` without it is another wheel, for CUDA."""
    pins: Pins = {}
    for one in needed(asked):
        found = Version(version(one.name))
        if not one.specifier.contains(found, prereleases=True):
            raise SystemExit(
                f"{one} is asked for, {found} is installed: bring the environment up to date."
            )
        pins[canonicalize_name(one.name)] = found
    return pins


def for_cpu(trainer: Pins) -> Pins:
    """Builds for the processor alone: to pip `2.13.0+cpu` is a `2.13.0`, and the better one where both can be had."""
    return {name: pin for name, pin in trainer.items() if pin.local}


def with_cuda(trainer: Pins) -> Pins:
    """The trainer's pins with torch and XGBoost for GPUs, and what these need, as the index has it today."""
    if Version(version("pip")) < Version("23.3"):
        raise SystemExit("This pip downloads every CUDA wheel to read its needs; 23.3 does not.")
    swapped = {CUDA.get(name, name): pin for name, pin in trainer.items()}
    asked = [f"{name}=={pin.public}" for name, pin in swapped.items()]
    asked += [f"{name}!={pin}" for name, pin in for_cpu(trainer).items()]
    resolve = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet"]
    with tempfile.NamedTemporaryFile() as report:
        command = [*resolve, "--only-binary", ":all:", "--report", report.name, *asked]
        subprocess.run(command, check=True)  # noqa: S603  pip itself
        chosen = [one["metadata"] for one in json.load(report)["install"]]
    return {canonicalize_name(one["name"]): Version(one["version"]) for one in chosen}


def read(image: str) -> Pins:
    """The pins as they lie here."""
    lines = (HERE / f"{image}.txt").read_text().splitlines()
    pairs = [line.split(",")[0].split("==") for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(name): Version(version) for name, version in pairs}


def write(image: str, pins: Pins, command: str, refused: Pins | None = None) -> None:
    """One line each, in order; `refused` are builds that must not stand in for what is pinned."""
    but = {name: f",!={pin}" for name, pin in (refused or {}).items()}
    lines = "".join(f"{name}=={pins[name]}{but.get(name, '')}\n" for name in sorted(pins))
    (HERE / f"{image}.txt").write_text(f"# Made by `{command}`.\n{lines}")


def main() -> None:
    """Writes the files anew."""
    command = "python docker/requirements/pin.py"
    if "--gpu" in sys.argv[1:]:
        trainer = read("trainer")
        write("trainer-gpu", with_cuda(trainer), f"{command} --gpu", for_cpu(trainer))
        return
    for image in (*EXTRAS, "build"):
        write(image, installed(direct(image)), command)


if __name__ == "__main__":
    main()

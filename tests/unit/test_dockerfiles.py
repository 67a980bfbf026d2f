"""What the images are made of, as far as it can be told without an engine; `make images` builds them, tests/deploy runs them."""

from __future__ import annotations

import compileall
import importlib.util
import json
import marshal
import os
import re
import shutil
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from wire import __version__
from wire.runtime.cli import application

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).parents[2]
DOCKER = REPOSITORY / "docker"
IMAGES = ("coordinator", "agent", "trainer")
PROJECT: dict[str, Any] = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
every_image = pytest.mark.parametrize("image", IMAGES)


def script(path: Path) -> ModuleType:
    """A script of the build, which no package holds."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


pin = script(DOCKER / "requirements" / "pin.py")
finish = script(DOCKER / "finish.py")


def instructions(image: str) -> list[tuple[str, str]]:
    """Each instruction with what follows it, continued lines joined, comments gone."""
    text = (DOCKER / f"{image}.Dockerfile").read_text()
    text = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", "")
    found = [re.sub(r" +", " ", line).split(" ", 1) for line in text.splitlines() if line.strip()]
    return [(word, rest) for word, rest in found]


def stages(image: str) -> list[list[tuple[str, str]]]:
    """The instructions of each stage, from its FROM on."""
    whole: list[list[tuple[str, str]]] = []
    for word, rest in instructions(image):
        if word == "FROM":
            whole.append([])
        if whole:
            whole[-1].append((word, rest))
    return whole


def copied(stage: list[tuple[str, str]]) -> list[str]:
    """What a stage takes from the repository."""
    return [
        source
        for word, rest in stage
        if word == "COPY" and not rest.startswith("--from")
        for source in rest.split()[:-1]
    ]


def last(stage: list[tuple[str, str]], word: str) -> str:
    return [rest for one, rest in stage if one == word][-1]


def contract(name: str) -> dict[str, Any]:
    contracts = PROJECT["tool"]["importlinter"]["contracts"]
    return next(one for one in contracts if one["name"].startswith(name))


def test_hadolint_finds_nothing() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    files = sorted(DOCKER.glob("*.Dockerfile"))
    assert {file.name.split(".")[0] for file in files} == set(IMAGES)
    outcome = subprocess.run([hadolint, *files], capture_output=True, text=True, check=False)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr


@every_image
def test_every_stage_stands_on_one_pinned_base(image: str) -> None:
    assert instructions(image)[0] == (
        "ARG",
        "BASE=docker.io/library/python:3.11-slim-bookworm",
    )
    bases = [stage[0][1] for stage in stages(image)]
    assert bases == ["${BASE} AS dependencies", "dependencies AS code", "${BASE}"]
    assert PROJECT["project"]["requires-python"] == ">=3.11,<3.12"


@every_image
def test_dependencies_change_with_their_pins_only(image: str) -> None:
    dependencies, code, runtime = stages(image)
    pins = "${FLAVOUR}" if image == "trainer" else image
    assert copied(dependencies) == [f"docker/requirements/{pins}.txt", "docker/finish.py"]
    assert "wire" in copied(code)
    assert copied(runtime) == []
    taken = [rest for word, rest in runtime if word == "COPY"]
    assert taken == [
        "--from=dependencies /opt/consilium /opt/consilium",
        "--from=code /code/opt/consilium /opt/consilium",
    ]


@every_image
def test_nothing_is_installed_but_what_is_pinned(image: str) -> None:
    installs = [
        part
        for word, rest in instructions(image)
        if word == "RUN"
        for part in rest.split("&&")
        if " install " in part and "pip" in part
    ]
    assert len(installs) >= 3
    for install in installs:
        assert "--no-deps" in install
        pinned = re.search(r'(-r|--constraint) "?[\w${}]+\.txt', install)
        assert pinned or "--no-index" in install, install
        assert "--only-binary :all:" in install or "--no-index" in install, install


@every_image
def test_an_image_runs_as_nobody_and_needs_no_shell(image: str) -> None:
    runtime = stages(image)[-1]
    user = "10002" if image == "agent" else "10001"
    assert last(runtime, "USER") == f"{user}:{user}"
    assert last(runtime, "STOPSIGNAL") == "SIGTERM"
    assert last(runtime, "WORKDIR") == "/var/lib/consilium"
    assert json.loads(last(runtime, "ENTRYPOINT")) == ["consilium"]
    understood(json.loads(last(runtime, "CMD")))
    program, *probe = json.loads(last(runtime, "HEALTHCHECK").split(" CMD ")[1])
    assert program == "consilium"
    understood(probe)
    assert probe[-1].startswith("probe")
    settings = last(runtime, "ENV")
    assert "PYTHONDONTWRITEBYTECODE=1" in settings
    assert settings.startswith("PATH=/opt/consilium/bin:")


def understood(words: list[str]) -> None:
    command: Any = typer.main.get_command(application(words))
    for word in words:
        assert word in command.commands, words
        command = command.commands[word]


@every_image
def test_the_labels_say_what_it_is(image: str) -> None:
    runtime = stages(image)[-1]
    labels = dict(
        re.findall(r'org\.opencontainers\.image\.(\w+)="([^"]*)"', last(runtime, "LABEL"))
    )
    assert labels["title"] == f"Consilium {image}"
    assert labels["licenses"] == PROJECT["project"]["license"]
    assert labels["description"]


def test_no_image_holds_a_room_that_is_not_its_own() -> None:
    rooms = {
        image: {source for source in copied(stages(image)[1]) if not source.startswith("docker/")}
        for image in IMAGES
    }
    about = {"pyproject.toml", "README.md", "LICENSE", "wire"}
    assert rooms["coordinator"] - about == {"coordinator"}
    both = {"silo_agent/__init__.py", "silo_agent/shared"}
    assert rooms["trainer"] - about == {*both, "silo_agent/trainer"}
    assert rooms["agent"] - about == {*both, "silo_agent/agent"}


def test_every_folder_of_a_hospital_is_in_an_image_and_the_two_sides_in_one_each() -> None:
    folders = {
        f"silo_agent/{path.parent.name}"
        for path in (REPOSITORY / "silo_agent").glob("*/__init__.py")
    }
    agent, trainer = ({*copied(stages(image)[1])} for image in ("agent", "trainer"))
    assert folders <= agent | trainer
    assert agent & trainer & folders == {"silo_agent/shared"}
    independent = contract("A hospital's two processes")["modules"]
    assert {name.replace(".", "/") for name in independent} == folders - {"silo_agent/shared"}


@every_image
def test_what_is_copied_exists_and_reaches_the_engine(image: str) -> None:
    let_in = (REPOSITORY / ".dockerignore").read_text().splitlines()
    patterns = [line.removeprefix("!") for line in let_in if line.startswith("!")]
    for stage in stages(image):
        for source in copied(stage):
            source = source.replace("${FLAVOUR}", "trainer")
            assert list(REPOSITORY.glob(source)), source
            assert any(fnmatch(source, one) or source.startswith(f"{one}/") for one in patterns)


def test_the_engine_gets_nothing_unasked() -> None:
    lines = [
        line for line in (REPOSITORY / ".dockerignore").read_text().splitlines() if line[0] != "#"
    ]
    assert lines[0] == "*"
    used = {source for image in IMAGES for stage in stages(image) for source in copied(stage)}
    for line in lines[1:]:
        name = line.removeprefix("!")
        assert line == "**/__pycache__" or any(
            fnmatch(one, name) or one.startswith(name) for one in used
        ), line


@every_image
def test_a_named_volume_finds_its_folder_with_its_owner(image: str) -> None:
    """An engine gives a new volume the owner of the folder it covers; one that is not there becomes root's."""
    made = re.findall(r"(?<=[ ])/[\w/]+", last(stages(image)[-1], "RUN").split("--mode 0700")[1])
    compose = "docker-compose.yml" if image == "coordinator" else "docker/silo.compose.yml"
    parts = yaml.safe_load((REPOSITORY / compose).read_text())
    service = parts["services"][image]
    targets = [one.split(":")[1] for one in service["volumes"] if isinstance(one, str)]
    assert targets
    assert set(targets) <= set(made)
    for folder in made:
        assert str(Path(folder).parent) in (*made, "/var/lib", "/"), "made before its parent"


# The pins.


@pytest.mark.parametrize("image", [*IMAGES, "build"])
def test_the_pins_are_what_pyproject_asks_for(image: str) -> None:
    """Needs of needs are known for the packages that are installed here in the pinned version."""
    pins = pin.read(image)
    waiting: list[Requirement] = pin.direct(image)
    needed, unknown = set(), False
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        one = waiting.pop()
        name = canonicalize_name(one.name)
        assert name in pins, f"{one}: run `python docker/requirements/pin.py`"
        assert one.specifier.contains(pins[name], prereleases=True), f"{one}, not {pins[name]}"
        needed.add(name)
        if not installed_as_pinned(name, pins[name]):
            unknown = True
        elif (name, frozenset(one.extras)) not in seen:
            seen.add((name, frozenset(one.extras)))
            waiting += [further for further in pin.needed([one]) if further is not one]
    assert unknown or set(pins) == needed, "pins that nothing asks for"


def installed_as_pinned(name: str, pinned: Version) -> bool:
    try:
        return Version(version(name)) == pinned
    except PackageNotFoundError:
        return False


def test_one_version_of_everything_in_all_images() -> None:
    agent, coordinator, trainer = (pin.read(image) for image in ("agent", "coordinator", "trainer"))
    assert len(agent) > 15
    assert agent.items() <= coordinator.items()
    assert agent.items() <= trainer.items()
    for name in coordinator.keys() & trainer.keys():
        assert coordinator[name] == trainer[name]


@pytest.mark.parametrize("image", ["coordinator", "agent"])
def test_only_the_trainer_has_learner_libraries(image: str) -> None:
    forbidden = contract("The coordinator and the network side have no learner")[
        "forbidden_modules"
    ]
    assert "torch" in forbidden
    learners = {*forbidden, "interpret-core", "opacus", "scikit-learn", "xgboost-cpu"}
    assert learners & pin.read("trainer").keys() >= {"torch", "scikit-learn", "pandas"}
    assert not learners & pin.read(image).keys()


def test_the_gpu_image_refuses_the_cpus_torch() -> None:
    lines = (DOCKER / "requirements" / "trainer-gpu.txt").read_text().splitlines()
    (torch,) = [Requirement(line) for line in lines if line.startswith("torch==")]
    cpu = pin.read("trainer")["torch"]
    assert not torch.specifier.contains(cpu)
    assert torch.specifier.contains(cpu.public)


def test_the_gpu_image_differs_in_its_wheels_only() -> None:
    cpu, gpu = pin.read("trainer"), pin.read("trainer-gpu")
    assert cpu.pop("torch").public == str(gpu.pop("torch"))
    assert cpu.pop("xgboost-cpu") == gpu.pop("xgboost")
    assert cpu.items() <= gpu.items()
    more = gpu.keys() - cpu.keys()
    assert "nvidia-cublas" in more
    assert {name.split("-")[0] for name in more} == {"cuda", "nvidia", "triton"}


def test_pinning_refuses_an_environment_that_is_behind() -> None:
    with pytest.raises(SystemExit, match="numpy>=99"):
        pin.installed([Requirement("numpy>=99")])


# The last step of building.


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """An environment as pip leaves it, with what it may lose and what it must keep."""
    root = tmp_path / "opt" / "consilium"
    packages = root / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
    for name in (
        *("numpy/testing/__init__.py", "numpy/tests/test_it.py", "numpy/_core/include/a.h"),
        *("torch/bin/torch_shm_manager", "torch/bin/test_api", "torch/bin/FileStoreTest"),
        *("pyarrow/_parquet.so", "pyarrow/_flight.so", "pyarrow/libarrow_flight.so.1"),
        *("ebm/lib_x64.so", "ebm/lib_x64_debug.so", "ebm/lib.dll", "ebm/typed.pyi"),
        *("wire/runtime/cli.py", "silo_agent/agent/cli.py", "silo_agent/shared/probe.py"),
    ):
        file = packages / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"NAME = {name!r}\n")
    # pip's own bytecode, which is checked against dates.
    compileall.compile_dir(packages, quiet=2)
    points = packages / "consilium-0.1.0.dist-info" / "entry_points.txt"
    points.parent.mkdir()
    points.write_text(
        "[console_scripts]\nconsilium = wire.runtime.cli:main\n\n[consilium.commands]\n"
        "agent = silo_agent.agent.cli:agent\nagent.probe = silo_agent.shared.probe:agent\n"
        "agent.private = silo_agent.trainer.cli.agent:private\ntask = coordinator.cli:task\n"
    )
    return root


def finished(root: Path) -> Path:
    subprocess.run(
        [sys.executable, DOCKER / "finish.py", root],
        check=True,
        capture_output=True,
        env={**os.environ, "PYTHONHASHSEED": "random"},
    )
    return next(root.glob("lib/*/site-packages"))


def test_an_environment_loses_what_no_process_reads(environment: Path) -> None:
    packages = finished(environment)
    left = {
        str(path.relative_to(packages))
        for path in packages.rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    assert left == {
        "numpy/testing/__init__.py",
        "torch/bin/torch_shm_manager",
        "pyarrow/_parquet.so",
        "ebm/lib_x64.so",
        "wire/runtime/cli.py",
        "silo_agent/agent/cli.py",
        "silo_agent/shared/probe.py",
        "consilium-0.1.0.dist-info/entry_points.txt",
    }


def test_an_image_offers_the_commands_it_has(environment: Path) -> None:
    packages = finished(environment)
    points = (packages / "consilium-0.1.0.dist-info" / "entry_points.txt").read_text()
    lines = [line for line in points.splitlines() if line]
    assert lines == [
        "[console_scripts]",
        "consilium = wire.runtime.cli:main",
        "[consilium.commands]",
        "agent = silo_agent.agent.cli:agent",
        "agent.probe = silo_agent.shared.probe:agent",
    ]


def test_bytecode_is_never_made_again(environment: Path) -> None:
    packages = finished(environment)
    sources = list(packages.rglob("*.py"))
    assert len(sources) == 4
    for source in sources:
        compiled = Path(importlib.util.cache_from_source(str(source)))
        content = compiled.read_bytes()
        assert int.from_bytes(content[4:8], "little") == 0b01, "hashed and never checked"
        where = Path(finish.FINAL) / source.relative_to(environment)
        assert marshal.loads(content[16:]).co_filename == str(where)


def test_the_same_files_make_the_same_environment(environment: Path, tmp_path: Path) -> None:
    other = tmp_path / "again" / "opt" / "consilium"
    shutil.copytree(environment, other)
    first, second = facts(finished(environment)), facts(finished(other))
    assert first == second
    assert {when for _, when, _ in first} == {0.0}


def facts(packages: Path) -> list[tuple[str, float, bytes]]:
    return sorted(
        (
            str(path.relative_to(packages)),
            path.stat().st_mtime,
            path.read_bytes() if path.is_file() else b"",
        )
        for path in [packages, *packages.rglob("*")]
    )


# make images


def made(target: str, *settings: str) -> list[str]:
    outcome = subprocess.run(
        ["make", "--dry-run", "--no-print-directory", target, *settings],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
        env={key: value for key, value in os.environ.items() if key != "MAKEFLAGS"},
    )
    return [re.sub(r"\s+", " ", line) for line in outcome.stdout.splitlines()]


def test_make_images_builds_the_three_small_ones() -> None:
    source = "https://example.org/consilium"
    lines = made("images", "CONTAINERS=docker", f"SOURCE={source}", "REVISION=12ab")
    assert [re.search(r"--tag (\S+) --file (\S+) \. ", line).groups() for line in lines] == [  # type: ignore[union-attr]
        (f"consilium-{image}:{__version__}", f"docker/{image}.Dockerfile") for image in IMAGES
    ]
    for line in lines:
        labels = dict(re.findall(r"--label org\.opencontainers\.image\.(\w+)=(\S+)", line))
        assert labels == {"version": __version__, "source": source, "revision": "12ab"}
    assert not any("gpu" in line for line in lines)


def test_make_images_speaks_to_a_script_around_an_engine() -> None:
    for image, line in zip(IMAGES, made("images", "CONTAINERS=./engine"), strict=True):
        expected = f"./engine build consilium-{image}:{__version__} docker/{image}.Dockerfile . "
        assert expected in line


def test_make_images_gpu_takes_the_cuda_wheels() -> None:
    (line,) = made("images-gpu", "BASE=mirror/python@sha256:12")
    assert f"consilium-trainer-gpu:{__version__} --file docker/trainer.Dockerfile" in line
    assert "FLAVOUR=trainer-gpu" in line
    assert "TORCH_INDEX= " in line, "pip's own index has them"
    assert "BASE=mirror/python@sha256:12" in line

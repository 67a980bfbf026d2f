"""The images as `make images` left them: nobody's, read-only, without a network, and with nothing inside that is not theirs.

CONTAINERS names the engine: `docker` by default, `podman`, or a program that has podman as a command.
CONSILIUM_VERSION names a tag other than that of `make images`, IMAGES what to look at: by default all but `trainer-gpu`.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from wire import __version__

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(900)]

_CONTAINERS = shlex.split(os.environ.get("CONTAINERS", "docker"))
_DIRECT = Path(_CONTAINERS[-1]).name in ("docker", "podman")
ENGINE = _CONTAINERS if _DIRECT else [*_CONTAINERS, "podman"]
IMAGES = os.environ.get("IMAGES", "coordinator agent trainer").split()
TRAINERS = [image for image in IMAGES if image.startswith("trainer")]
TAG = os.environ.get("CONSILIUM_VERSION", __version__)
HARDENED = (
    *("--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"),
    *("--tmpfs", "/tmp:rw,mode=1777", "--network", "none"),
)
PATIENCE = 120
every_image = pytest.mark.parametrize("image", IMAGES)
every_trainer = pytest.mark.parametrize("image", TRAINERS)


def engine(*words: str, given: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*ENGINE, *words], input=given, capture_output=True, text=True, check=False
    )


def tagged(image: str) -> str:
    return f"consilium-{image}:{TAG}"


def room(image: str) -> str:
    """Whose process an image runs: a trainer is one with CUDA or without."""
    return image.removesuffix("-gpu")


def run(image: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Our command in a fresh, hardened container that nobody keeps."""
    return engine("run", "--rm", *HARDENED, tagged(image), *words)


def python(image: str, program: str) -> Any:
    """What a program inside says, as JSON."""
    words = ("run", "--rm", "--interactive", *HARDENED, "--entrypoint", "python", tagged(image))
    outcome = engine(*words, "-", given=program)
    assert outcome.returncode == 0, outcome.stderr[-3000:]
    return json.loads(outcome.stdout.splitlines()[-1])


def user(image: str) -> int:
    """The agent is another user than the trainer."""
    return 10002 if room(image) == "agent" else 10001


@every_image
def test_the_image_says_what_it_is(image: str) -> None:
    outcome = engine("image", "inspect", tagged(image))
    assert outcome.returncode == 0, f"{outcome.stderr} Run `make images` first."
    (about,) = json.loads(outcome.stdout)
    config = about["Config"]
    assert config["User"] == f"{user(image)}:{user(image)}"
    assert config["Entrypoint"] == ["consilium"]
    assert config["StopSignal"] in ("SIGTERM", "15")
    healthcheck = config.get("Healthcheck") or about["Healthcheck"]
    assert healthcheck["Test"][:2] == ["CMD", "consilium"]
    labels = {key.rpartition(".")[2]: value for key, value in config["Labels"].items()}
    assert labels["title"] == f"Consilium {room(image)}"
    assert labels["version"] == TAG
    assert labels["licenses"] == "Apache-2.0"
    assert labels["revision"]
    ports = {"coordinator": {7443, 7444, 9464}, "agent": {9465}, "trainer": set()}
    exposed = config.get("ExposedPorts") or {}
    assert {int(port.split("/")[0]) for port in exposed} == ports[room(image)]


@every_image
def test_it_runs_as_nobody_and_writes_nowhere(image: str) -> None:
    found = python(
        image,
        """
import getpass, json, os, sys
refused = []
for folder in ("/", "/etc", "/opt/consilium", "/var/lib/consilium", sys.prefix + "/bin"):
    try:
        open(os.path.join(folder, "mark"), "w")
    except OSError:
        refused.append(folder)
open("/tmp/mark", "w")
capabilities = next(line for line in open("/proc/self/status") if line.startswith("CapEff"))
print(json.dumps({
    "ids": [os.getuid(), os.getgid()], "name": getpass.getuser(), "refused": len(refused),
    "capabilities": int(capabilities.split()[1], 16),
    "interfaces": [name for name in os.listdir("/sys/class/net") if name != "lo"],
    "prefix": sys.prefix, "bytecode": sys.dont_write_bytecode,
}))
""",
    )
    assert found == {
        "ids": [user(image), user(image)],
        "name": "consilium",
        "refused": 5,
        "capabilities": 0,
        "interfaces": [],
        "prefix": "/opt/consilium",
        "bytecode": True,
    }


@every_image
def test_it_has_what_its_room_needs_and_nothing_else(image: str) -> None:
    found = python(
        image,
        """
import importlib.util, json, shutil
def there(name):
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False
names = ["coordinator", "silo_agent.shared", "silo_agent.agent", "silo_agent.trainer", "experiments",
         "sklearn", "torch", "pandas", "xgboost", "transformers", "interpret", "imodels", "joblib",
         "sqlalchemy", "psycopg", "dp_accounting", "scipy", "pyarrow"]
installers = [name for name in ("pip", "ensurepip", "wheel") if there(name)]
installers += [name for name in ("pip", "pip3", "pip3.11") if shutil.which(name)]
print(json.dumps({"rooms": [name for name in names if there(name)], "installers": installers}))
""",
    )
    rooms = {
        "coordinator": {
            "coordinator",
            "sqlalchemy",
            "psycopg",
            "dp_accounting",
            "scipy",
            "pyarrow",
        },
        "agent": {"silo_agent.shared", "silo_agent.agent"},
        "trainer": {
            *("silo_agent.shared", "silo_agent.trainer"),
            *("sklearn", "torch", "pandas", "xgboost", "transformers"),
            *("interpret", "imodels", "joblib", "dp_accounting", "scipy", "pyarrow"),
        },
    }
    assert set(found["rooms"]) == rooms[room(image)]
    assert found["installers"] == []


@every_image
def test_every_module_is_compiled_and_imports(image: str) -> None:
    """Of `wire` what the room imports: the rest may need libraries the image has not."""
    found = python(
        image,
        """
import importlib, importlib.util, json, os, pkgutil, sys
failed, bare, modules = {}, [], 0
for room in ("coordinator", "silo_agent"):
    if importlib.util.find_spec(room) is None:
        continue
    package = importlib.import_module(room)
    for one in pkgutil.walk_packages(package.__path__, room + "."):
        modules += 1
        if one.name.rpartition(".")[2] in ("env", "__main__") or "migrations.versions" in one.name:
            continue
        try:
            importlib.import_module(one.name)
        except Exception as error:
            failed[one.name] = repr(error)
for name, module in list(sys.modules.items()):
    spec = getattr(module, "__spec__", None)
    if spec and spec.cached and spec.origin.startswith("/opt/") and not os.path.exists(spec.cached):
        bare.append(name)
print(json.dumps({"failed": failed, "bare": bare, "modules": modules}))
""",
    )
    assert found["failed"] == {}
    assert found["bare"] == []
    assert found["modules"] > 25


@every_trainer
def test_every_learner_learns_in_what_is_left_of_its_library(image: str) -> None:
    accuracy = python(
        image,
        """
import json
import numpy as np
from silo_agent.trainer.models.catalogue import LEARNERS, LearnerSpec, build, reads
rows = np.random.default_rng(1).normal(size=(120, 4)).astype(np.float32)
labels = (rows[:, 0] > 0).astype(np.int64)
found = {}
for name in LEARNERS:
    if reads(LearnerSpec(name=name)) != "features" or name == "torch_cnn":
        continue
    learner = build(LearnerSpec(name=name), 2, (4,), 1)
    learner.fit(rows, labels)
    found[name] = float(np.mean(learner.predict(rows) == labels))
images = np.repeat(rows[:, :1], 64, axis=1).reshape(-1, 1, 8, 8)
network = build(LearnerSpec(name="torch_cnn"), 2, (1, 8, 8), 1)
network.fit(images, labels)
found["torch_cnn"] = float(np.mean(network.predict(images) == labels))
print(json.dumps(found))
""",
    )
    assert {"xgboost", "rulefit", "ebm", "torch_mlp", "torch_cnn", "svm"} <= accuracy.keys()
    assert min(accuracy.values()) > 0.8, accuracy


@every_trainer
def test_only_the_trainer_for_gpus_is_built_for_cuda(image: str) -> None:
    """Whether a GPU is there is another question: without one both train on the processor."""
    built = python(
        image,
        """
import json, torch, xgboost
print(json.dumps({"torch": torch.version.cuda is not None, "xgboost": bool(xgboost.build_info()["USE_CUDA"])}))
""",
    )
    assert built == dict.fromkeys(("torch", "xgboost"), image == "trainer-gpu")


@every_image
def test_it_offers_its_own_commands(image: str) -> None:
    rooms = {
        "coordinator": {"coordinator", "admin", "silo", "public-set", "task", "audit"},
        "agent": {"agent"},
        "trainer": {"agent", "privacy", "student"},
    }
    everything = {"demo", "coordinator", "admin", "silo", "public-set", "task", "audit", "agent"}
    everything |= {"privacy", "student", "experiment"}
    outcome = run(image, "--help")
    assert outcome.returncode == 0, outcome.stderr
    offered = {
        line.strip("│ ").split(" ")[0] for line in outcome.stdout.splitlines() if line[:1] == "│"
    }
    assert offered & everything == rooms[room(image)]
    assert run(image, "--version").stdout.strip() == __version__


@every_image
def test_the_healthcheck_fails_where_nothing_runs(image: str) -> None:
    probes = {
        "coordinator": ("coordinator", "probe"),
        "agent": ("agent", "probe"),
        "trainer": ("agent", "probe-trainer"),
    }
    outcome = run(image, *probes[room(image)])
    assert outcome.returncode == 1, outcome.stderr
    said = [line for line in outcome.stdout.splitlines() if line.strip()]
    assert len(said) == 1
    assert "Traceback" not in outcome.stderr


@pytest.fixture
def volume() -> Iterator[str]:
    name = f"consilium-test-{uuid.uuid4().hex[:8]}"
    assert engine("volume", "create", name).returncode == 0
    yield name
    engine("volume", "rm", "--force", name)


def test_a_coordinator_lives_in_its_volume_and_leaves_when_told(volume: str) -> None:
    at = ("--volume", f"{volume}:/var/lib/consilium/coordinator")
    first = ("coordinator", "init", "--if-missing", "--host", "localhost")
    for _ in range(2):
        made = engine("run", "--rm", *HARDENED, *at, tagged("coordinator"), *first)
        assert made.returncode == 0, made.stdout + made.stderr
    started = engine("run", "--detach", "--init", *HARDENED, *at, tagged("coordinator"))
    assert started.returncode == 0, started.stderr
    container = started.stdout.split()[-1]
    try:
        deadline = time.monotonic() + PATIENCE
        probe = ("exec", container, "consilium", "coordinator", "probe")
        while (answer := engine(*probe)).returncode != 0:
            assert time.monotonic() < deadline, answer.stdout + engine("logs", container).stderr
        stopped = engine("stop", "--time", "60", container)
        assert stopped.returncode == 0, stopped.stderr
        left = engine("inspect", "--format", "{{.State.ExitCode}}", container)
        assert left.stdout.strip() == "0", engine("logs", container).stderr
    finally:
        engine("rm", "--force", container)

"""A compose project of a test: its containers, volumes and networks are there for one block and gone after it.

COMPOSE names the program (`docker compose` by default). HEALTHY, if set, runs the healthcheck of the container it is given: for engines
that have nobody to fire healthchecks, such as podman without systemd.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import urllib.parse
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import Any

import service

ROOT = Path(__file__).parents[2]
CONSORTIUM, SILO = "docker-compose.yml", "docker/silo.compose.yml"
WATCHED_SILO = f"{SILO}:docker/monitoring.yml"
HOSPITALS = ("bologna", "coimbra", "leiden")
OURS = ("coordinator", "agent", "trainer")
NO_PORTS = """
services:
  coordinator:
    # Whoever runs the tests may have a coordinator of his own.
    ports: !reset []
"""
COMPOSE = shlex.split(os.environ.get("COMPOSE", "docker compose"))
HEALTHY = shlex.split(os.environ.get("HEALTHY", ""))
PATIENCE = 400.0
"""Seconds after which something that should happen counts as never happening; no test needs them."""
eventually = partial(service.eventually, seconds=PATIENCE)

Service = dict[str, Any]

_ASK = """
import json, urllib.error, urllib.request
try:
    with urllib.request.urlopen("http://prometheus:9090/api/v1/" + PATH) as answer:
        print(json.dumps(json.load(answer)["data"]))
except urllib.error.URLError:
    print("null")
"""
_SETTINGS = ("CONSILIUM_", "COMPOSE_", "GRAFANA_", "MONITORING_", "POSTGRES_", "PROMETHEUS_")
_WHICH_IMAGES = ("CONSILIUM_REGISTRY", "CONSILIUM_VERSION")


def files(named: str) -> list[str]:
    """Compose's words for one file or several, named as in COMPOSE_FILE."""
    return [word for file in named.split(":") for word in ("-f", file)]


def compose(
    *words: object, environment: Mapping[str, str] | None = None, check: bool = True
) -> subprocess.CompletedProcess[str]:
    """Runs Compose in the repository, with no settings but those given."""
    clean = {
        key: value
        for key, value in os.environ.items()
        if key in _WHICH_IMAGES or not key.startswith(_SETTINGS)
    }
    command = [*COMPOSE, "--env-file", os.devnull, *map(str, words)]
    outcome = subprocess.run(
        command,
        cwd=ROOT,
        env=clean | dict(environment or {}),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert not check or outcome.returncode == 0, f"{command}\n{outcome.stdout}\n{outcome.stderr}"
    return outcome


class Stack:
    """One project: compose files of ours and what the test puts over them."""

    def __init__(
        self, file: str, override: Path, environment: Mapping[str, str], *profiles: str
    ) -> None:
        self.name = f"consilium-test-{uuid.uuid4().hex[:8]}"
        self._environment = environment
        self._words = ["--project-name", self.name, *files(file), "-f", str(override)]
        self._words += [word for profile in profiles for word in ("--profile", profile)]

    def __call__(self, *words: str, check: bool = True) -> str:
        """What Compose prints."""
        outcome = compose(*self._words, *words, environment=self._environment, check=check)
        return outcome.stdout if check else outcome.stdout + outcome.stderr

    def containers(self) -> dict[str, Service]:
        """What the engine says of each service's container, ended ones included."""
        lines = self("ps", "--all", "--format", "json").splitlines()
        return {one["Service"]: one for one in map(json.loads, filter(None, lines))}

    def healthy(self, *services: str) -> bool:
        """Whether the engine says so of all of them."""
        found = self.containers()
        return all(found[service]["Health"] == "healthy" for service in services)

    def run(self, service: str, *words: str) -> str:
        """What a command prints inside a service's container."""
        return self("exec", "--no-TTY", service, *words)

    def consilium(self, service: str, *words: str) -> Any:
        """What one of our commands says to scripts."""
        return json.loads(self.run(service, "consilium", *words, "--json"))

    def python(self, service: str, code: str) -> Any:
        """The value that `code` prints as JSON, found inside a service's container."""
        return json.loads(self.run(service, "python", "-c", code))

    def prometheus(self, path: str, **parameters: str) -> Any:
        """What the project's Prometheus answers; None while it is away. It has no Python, hence it is asked from `agent` or `coordinator`."""
        asking = "agent" if "agent" in self.containers() else "coordinator"
        asked = f"{path}?{urllib.parse.urlencode(parameters)}"
        return self.python(asking, _ASK.replace("PATH", repr(asked)))

    def series(self, expression: str) -> list[Any]:
        """The series that an expression has now in the project's Prometheus."""
        told = self.prometheus("query", query=expression)
        return list(told["result"]) if told else []

    def log(self, service: str) -> str:
        """What a service has said so far."""
        return self("logs", "--no-color", "--no-log-prefix", service)

    def end(self) -> None:
        """Removes everything, and shows the logs, which pytest prints if a test failed."""
        print(self("logs", "--no-color", "--tail", "60", check=False))
        self("down", "--volumes", "--remove-orphans", "--timeout", "30", check=False)

    def check_health(self, until: Event) -> None:
        """Runs every healthcheck again and again, as an engine would."""
        while not until.wait(1):
            # One that goes at this very moment makes the list fail.
            with suppress(AssertionError):
                for one in self.containers().values():
                    if one["State"] == "running" and one.get("Health"):
                        subprocess.run([*HEALTHY, one["Name"]], capture_output=True, check=False)


@contextmanager
def stack(
    file: str, folder: Path, override: str, environment: Mapping[str, str], *profiles: str
) -> Iterator[Stack]:
    """A project that is not up yet; nothing of it is left after the block."""
    over_it = folder / "override.yml"
    over_it.write_text(override)
    made, over = Stack(file, over_it, environment, *profiles), Event()
    nurse = Thread(target=made.check_health, args=(over,), daemon=True)
    try:
        if HEALTHY:
            nurse.start()
        yield made
    finally:
        over.set()
        if HEALTHY:
            nurse.join()
        made.end()

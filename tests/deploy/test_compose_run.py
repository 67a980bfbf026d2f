"""The demo, the database and a hospital of its own, run by Compose in containers: looked at from inside, killed, restarted.

Run by `make deploy-test`; tests/deploy/stack.py says which programs. POSTGRES_IMAGE and PROMETHEUS_IMAGE name images that are not ours.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from stack import CONSORTIUM, HOSPITALS, NO_PORTS, OURS, WATCHED_SILO, Stack, eventually, stack

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(900)]

ELSEWHERE = """
services:
  agent:
    ports: !reset []
  prometheus:
    ports: !reset []
networks:
  # In earnest there is the internet between the two.
  default: {name: PROJECT_consortium, external: true}
"""
GET_OUT = """
import json, socket
def reached(address):
    try:
        socket.create_connection(address, timeout=5).close()
    except OSError as error:
        return str(error)
    return True
print(json.dumps([reached(address) for address in ADDRESSES]))
"""
INTERFACES = """
import json, socket
print(json.dumps([name for _, name in socket.if_nameindex()]))
"""
WRITABLE = """
import json, os, tempfile
def writable(folder):
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        return False
    return True
places = ["/", "/etc", "/opt/consilium", "/usr", "/var", "/var/lib/consilium/silo", "/data", "/tmp"]
status = dict(line.split(":\\t", 1) for line in open("/proc/self/status") if ":\\t" in line)
print(json.dumps({
    "writable": [place for place in places if os.path.isdir(place) and writable(place)],
    "uid": os.getuid(),
    "capabilities": int(status["CapEff"], 16) | int(status["CapBnd"], 16),
    "no_new_privileges": status["NoNewPrivs"].strip(),
}))
"""
AGAIN = """
name: again
public_set: biopsies
labels: [malignant, benign]
silos: [bologna, coimbra, leiden]
rounds: {max_rounds: ROUNDS, deadline: 10m, grace: 0s, quorum: 3, stop_patience: 0}
"""
ROUNDS = 14
BALLOTS = """
import json, sqlite3
file = sqlite3.connect("file:/var/lib/consilium/coordinator/coordinator.db?mode=ro", uri=True)
print(json.dumps(file.execute("SELECT round, silo, digest FROM ballots WHERE task = 'again'").fetchall()))
"""


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with stack(CONSORTIUM, tmp_path_factory.mktemp("demo"), NO_PORTS, {}, "demo") as made:
        made("up", "--detach")
        eventually("the demo's report", lambda: ended(made, "demo-report"))
        yield made


def ended(made: Stack, service: str) -> bool:
    return bool(made.containers()[service]["State"] == "exited")


class TestDemo:
    def test_the_hospitals_federate_by_themselves_to_the_end(self, demo: Stack) -> None:
        containers = demo.containers()
        for name, one in containers.items():
            state = "running" if name.endswith(OURS) else "exited"
            assert (one["State"], one["ExitCode"]) == (state, 0), name
        task = demo.consilium("coordinator", "task", "show", "biopsies")
        assert task["task"]["status"] == "TASK_STATUS_FINISHED"
        assert all(one["consensus"]["ballots"] == 3 for one in task["history"])

    def test_the_report_says_what_it_brought_and_what_left(self, demo: Stack) -> None:
        said = demo.log("demo-report")
        assert "Task biopsies is finished." in said
        rounds = len(demo.consilium("coordinator", "task", "show", "biopsies")["history"])
        for hospital in HOSPITALS:
            row = rf"{hospital}\s+\w+\s+(0\.\d+)\s+(0\.\d+)\s+(\d+) × ballot: "
            found = re.search(row, said)
            assert found, said
            alone, together = float(found[1]), float(found[2])
            assert 0.5 < alone <= 1
            assert 0.85 < together <= 1
            assert int(found[3]) == rounds

    def test_nothing_gets_out_of_a_trainer(self, demo: Stack) -> None:
        where = "import json, socket; print(json.dumps(socket.gethostbyname('coordinator')))"
        addresses = [(demo.python("bologna-agent", where), 7443), ("coordinator", 7443)]
        code = GET_OUT.replace("ADDRESSES", repr(addresses))
        # The same question from the agent has another answer: it is the network that is missing, not the coordinator.
        assert demo.python("bologna-agent", code) == [True, True]
        for hospital in HOSPITALS:
            assert True not in demo.python(f"{hospital}-trainer", code)
            assert demo.python(f"{hospital}-trainer", INTERFACES) == ["lo"]
            log = demo.log(f"{hospital}-trainer")
            assert "trainer_ready" in log
            assert re.search(r"isolation\W+container", log), log

    def test_an_agent_has_no_data_and_no_learner(self, demo: Stack) -> None:
        code = """
import importlib.util, json, os
found = [os.path.join(root, name) for root, _, names in os.walk("/") if not root.startswith(("/proc", "/sys"))
         for name in names if name in ("patients.csv", "silo.yaml", "ledger.db", "model.joblib")]
libraries = [name for name in ("sklearn", "pandas", "torch", "xgboost") if importlib.util.find_spec(name)]
print(json.dumps([found, libraries]))
"""
        for hospital in HOSPITALS:
            assert demo.python(f"{hospital}-agent", code) == [[], []]
            # The search finds what there is to find.
            found, _ = demo.python(f"{hospital}-trainer", code)
            assert {"/data/patients.csv", "/var/lib/consilium/silo/trainer/ledger.db"} <= set(found)

    @pytest.mark.parametrize("service", ["coordinator", "bologna-agent", "bologna-trainer"])
    def test_a_container_can_write_to_its_volumes_only(self, demo: Stack, service: str) -> None:
        assert demo.python(service, WRITABLE) == {
            "writable": ["/tmp"],
            "uid": 10002 if service.endswith("agent") else 10001,
            "capabilities": 0,
            "no_new_privileges": "1",
        }

    def test_everything_is_healthy(self, demo: Stack) -> None:
        lasting = ["coordinator", *(f"{h}-{p}" for h in HOSPITALS for p in ("agent", "trainer"))]
        assert eventually("everything is healthy", lambda: demo.healthy(*lasting))

    def test_killing_and_restarting_containers_loses_nothing(self, demo: Stack) -> None:
        text = AGAIN.replace("ROUNDS", str(ROUNDS))
        demo.python("coordinator", f"open('/tmp/task.yaml', 'w').write({text!r}); print('null')")
        demo.run("coordinator", "consilium", "task", "create", "-f", "/tmp/task.yaml", "--start")

        def round_reached(number: int) -> None:
            eventually(f"round {number}", lambda: consensus(demo) >= number)

        round_reached(2)
        demo("kill", "coordinator")
        demo("start", "coordinator")
        round_reached(4)
        demo("kill", "bologna-trainer", "coimbra-agent")
        demo("start", "bologna-trainer", "coimbra-agent")
        round_reached(6)
        demo("restart", "--timeout", "30", "coordinator", "leiden-agent", "leiden-trainer")
        round_reached(8)
        # What an upgrade or a reboot does: every container is new, only the volumes are what they were.
        demo("down", "--timeout", "30")
        assert demo.containers() == {}
        demo("up", "--detach")
        eventually("the end of the task", lambda: consensus(demo) == ROUNDS)

        cast = demo.python("coordinator", BALLOTS)
        assert sorted((number, silo) for number, silo, _ in cast) == [
            (number, silo) for number in range(1, ROUNDS + 1) for silo in HOSPITALS
        ]
        for hospital in HOSPITALS:
            counted = {number: digest for number, silo, digest in cast if silo == hospital}
            left = demo.consilium(f"{hospital}-agent", "agent", "traffic")["movements"]
            sent = [m for m in left if m["task"] == "again" and m["direction"] == "out"]
            assert {(m["round"], m["digest"]) for m in sent} == set(counted.items())
            demo.run(f"{hospital}-trainer", "consilium", "agent", "ledger", "verify")
            words = ("agent", "ledger", "--last", "1000")
            ledger = demo.consilium(f"{hospital}-trainer", *words)
            paid = [one["round"] for one in ledger["entries"] if one["task"] == "again"]
            assert sorted(paid) == list(range(1, ROUNDS + 1))

    def test_a_second_start_keeps_what_the_first_made(self, demo: Stack) -> None:
        assert "is kept as it is" in demo.log("init")
        assert "has its token" not in demo.log("demo-register")
        for hospital in HOSPITALS:
            assert "it is kept so" in demo.log(f"{hospital}-join")
        silos = demo.consilium("coordinator", "silo", "list")["silos"]
        assert {one["name"] for one in silos} == set(HOSPITALS)

    def test_everything_ends_by_itself_when_told_to(self, demo: Stack) -> None:
        """SIGTERM is enough: nobody is killed after the grace period, so every status is 0."""
        demo("stop")
        for name, one in demo.containers().items():
            assert (one["State"], one["ExitCode"]) == ("exited", 0), name


def consensus(made: Stack) -> int:
    """The latest round of task `again` that has been published; 0 while the coordinator is away."""
    words = ("exec", "--no-TTY", "coordinator", "consilium", "task", "show", "again", "--json")
    try:
        return int(json.loads(made(*words))["task"]["consensus"]["round"])
    except AssertionError:
        return 0


@pytest.fixture(scope="module")
def consortium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("postgres")
    password = folder / "password"
    password.write_text("correct horse battery staple\n")
    password.chmod(0o444)
    environment = {
        "CONSILIUM_DATABASE": "postgresql+psycopg://consilium@database/consilium",
        "CONSILIUM_DATABASE_PASSWORD_FILE": str(password),
    }
    if image := os.environ.get("POSTGRES_IMAGE"):
        environment["POSTGRES_IMAGE"] = image
    with stack(CONSORTIUM, folder, NO_PORTS, environment, "postgres") as made:
        made("up", "--detach")
        eventually("a coordinator", lambda: made.healthy("coordinator"))
        yield made


class TestPostgres:
    def test_members_are_kept_in_the_database(self, consortium: Stack) -> None:
        consortium.run("coordinator", "consilium", "silo", "register", "north")
        assert self.silos(consortium) == ["north"]
        files = "import json, os; print(json.dumps(os.listdir('/var/lib/consilium/coordinator')))"
        assert "coordinator.db" not in consortium.python("coordinator", files)

    def test_the_password_is_nowhere_but_in_its_file(self, consortium: Stack) -> None:
        code = """
import json, os, pathlib
files = [path for path in pathlib.Path("/var/lib/consilium").rglob("*") if path.is_file()]
told = [str(path) for path in files if b"correct horse" in path.read_bytes()]
told += [key for key, value in os.environ.items() if "correct horse" in value]
print(json.dumps(told))
"""
        assert consortium.python("coordinator", code) == []
        assert "correct horse" not in consortium("logs")

    def test_the_database_lets_nobody_in_without_it(self, consortium: Stack) -> None:
        code = """
import json, psycopg
try:
    psycopg.connect("postgresql://consilium@database/consilium", password="wrong")
except psycopg.OperationalError as error:
    print(json.dumps(str(error)))
"""
        assert "password authentication failed" in consortium.python("coordinator", code)

    def test_a_database_that_was_away_is_found_again(self, consortium: Stack) -> None:
        started = consortium.run("coordinator", "cat", "/proc/1/stat").split()[21]
        consortium("kill", "database")
        assert (
            "error"
            in consortium(
                "exec", "--no-TTY", "coordinator", "consilium", "silo", "list", check=False
            ).lower()
        )
        # A database that is away is no reason to restart the coordinator.
        consortium.run("coordinator", "consilium", "coordinator", "probe")
        consortium("start", "database")
        words = (
            "exec",
            "--no-TTY",
            "coordinator",
            "consilium",
            "silo",
            "register",
            "south",
            "--json",
        )
        eventually("a registration", lambda: "join_token" in consortium(*words, check=False))
        assert self.silos(consortium) == ["north", "south"]
        assert consortium.run("coordinator", "cat", "/proc/1/stat").split()[21] == started

    def test_a_hospital_joins_with_its_own_files_and_only_once(
        self, consortium: Stack, tmp_path: Path
    ) -> None:
        registered = consortium.consilium("coordinator", "silo", "register", "mainz")
        token, settings, data = tmp_path / "token", tmp_path / "silo.yaml", tmp_path / "data"
        token.write_text(registered["join_token"])
        settings.write_text("data: {path: /data/patients.csv, label: ill}\nmodel: decision_tree\n")
        data.mkdir()
        (data / "patients.csv").write_text("age,ill\n" + "61,yes\n47,no\n" * 20)
        environment = {
            "CONSILIUM_JOIN_TOKEN_FILE": str(token),
            "CONSILIUM_SILO_YAML": str(settings),
            "CONSILIUM_DATA": str(data),
        }
        if image := os.environ.get("PROMETHEUS_IMAGE"):
            environment["PROMETHEUS_IMAGE"] = image
        beside = ELSEWHERE.replace("PROJECT", consortium.name)
        with stack(WATCHED_SILO, tmp_path, beside, environment, "cpu") as hospital:
            hospital("up", "--detach", "trainer", "agent", "prometheus")
            eventually("a connection", lambda: hospital.healthy("agent", "prometheus"))
            (seen,) = eventually("a scrape", lambda: hospital.series("consilium_agent_connected"))
            assert seen["metric"]["job"] == "consilium-agent"
            assert "Joined" in hospital.log("join")
            hospital.run("trainer", "consilium", "agent", "check")
            assert hospital.python("trainer", INTERFACES) == ["lo"]
            # The token may go; the identity stays in its volume.
            token.write_text("")
            hospital("down", "--timeout", "30")
            hospital("up", "--detach", "trainer", "agent")
            eventually("a connection", lambda: hospital.healthy("agent"))
            assert "it is kept so" in hospital.log("join")
        assert consortium.consilium("coordinator", "silo", "show", "mainz")["connected"] is False

    @staticmethod
    def silos(consortium: Stack) -> list[str]:
        words = ("psql", "--username=consilium", "--dbname=consilium", "-tAc")
        query = "SELECT name FROM silos ORDER BY name"
        return consortium.run("database", *words, query).split()

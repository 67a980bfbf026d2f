"""The doctor's judgements: each a pure function of what was found."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from coordinator.public_sets.convert import convert
from silo_agent.agent.doctor.environment import environment_finding
from silo_agent.agent.doctor.membership import (
    MembershipReply,
    clock_finding,
    key_finding,
    protocol_finding,
    role_finding,
)
from silo_agent.shared.home import SiloHome
from silo_agent.trainer import check as rehearsals
from silo_agent.trainer.check import TrainerChecks
from silo_agent.trainer.isolation import Isolation, Mode
from wire.consilium.v1 import identity_pb2
from wire.errors import ConfigurationError
from wire.identity.files import IdentityFiles
from wire.net.proxy import Proxy, read_proxy, without_proxy
from wire.runtime.disk import check_disk
from wire.runtime.findings import Finding, Status, failed, ok, run_in_order, warning, worst

pytestmark = pytest.mark.slow

GIB = 1 << 30
NOON = datetime(2026, 7, 27, 12, tzinfo=UTC)


class TestTheOrderOfThings:
    def test_what_needs_a_failed_check_is_not_tried(self) -> None:
        tried = []

        def check(name: str, fails: bool = False) -> tuple[str, object]:
            def run() -> Finding:
                tried.append(name)
                if fails:
                    raise ConfigurationError("It is closed.", "Open it.")
                return ok(name, "Fine.")

            return name, run

        found = list(run_in_order([check("a"), check("b", fails=True), check("c"), check("d")]))
        assert [finding.status for finding in found] == ["ok", "failed", "skipped", "skipped"]
        assert (found[1].sentence, found[1].next_step) == ("It is closed.", "Open it.")
        assert found[3].sentence == "Not tried: b failed."
        assert tried == ["a", "b"]

    def test_a_warning_stops_nothing(self) -> None:
        found = list(
            run_in_order(
                [("a", lambda: warning("a", "Hm.", "Look.")), ("b", lambda: ok("b", "Fine."))]
            )
        )
        assert [finding.status for finding in found] == ["warning", "ok"]

    def test_the_worst_finding_decides(self) -> None:
        fine, odd, bad = ok("a", "x"), warning("b", "x", "y"), failed("c", "x", "y")
        assert worst([fine]) is Status.OK
        assert worst([fine, odd, fine]) is Status.WARNING
        assert worst([odd, bad, fine]) is Status.FAILED

    def test_findings_survive_the_way_between_processes(self) -> None:
        finding = warning("disk", "Only 3 GB [free].", "Free some.")
        assert Finding.from_json(json.loads(json.dumps(finding.as_json()))) == finding


class TestProtocol:
    @pytest.mark.parametrize(
        ("oldest", "newest", "ours", "status", "advice"),
        [
            (3, 4, 4, Status.OK, ""),
            (3, 4, 3, Status.WARNING, "Upgrade this agent soon"),
            (3, 4, 2, Status.FAILED, "Upgrade this agent"),
            (3, 4, 5, Status.FAILED, "upgrade the coordinator"),
        ],
    )
    def test_says_which_side_to_upgrade(
        self, oldest: int, newest: int, ours: int, status: Status, advice: str
    ) -> None:
        answer = identity_pb2.WhoAmIResponse(
            coordinator_version="4.2", oldest_protocol=oldest, newest_protocol=newest
        )
        found = protocol_finding(answer, ours, "4.2.7")
        assert found.status is status
        assert "4.2" in found.sentence
        assert advice in found.next_step

    @pytest.mark.parametrize(
        ("version", "status", "advice"),
        [
            ("4.1.9", Status.WARNING, "Upgrade agent and trainer soon"),
            ("4.0.0", Status.FAILED, "Upgrade agent and trainer of north"),
            ("4.3.0", Status.WARNING, "upgrade the coordinator"),
        ],
    )
    def test_says_so_too_if_only_the_releases_differ(
        self, version: str, status: Status, advice: str
    ) -> None:
        answer = identity_pb2.WhoAmIResponse(
            name="north", coordinator_version="4.2.0", oldest_protocol=1, newest_protocol=1
        )
        found = protocol_finding(answer, 1, version)
        assert found.status is status
        assert advice in found.next_step


class TestClock:
    @pytest.mark.parametrize(
        ("ahead", "status", "words"),
        [
            (timedelta(seconds=30), Status.OK, "agrees"),
            (timedelta(seconds=31), Status.WARNING, "31 seconds behind"),
            (timedelta(seconds=-31), Status.WARNING, "31 seconds ahead of"),
            (timedelta(minutes=5), Status.WARNING, "5 minutes behind"),
            (timedelta(minutes=-5, seconds=-1), Status.FAILED, "5 minutes ahead of"),
            (timedelta(days=3), Status.FAILED, "3 days behind"),
        ],
    )
    def test_half_a_minute_is_noticed_and_five_minutes_are_too_much(
        self, ahead: timedelta, status: Status, words: str
    ) -> None:
        found = clock_finding(ahead)
        assert found.status is status
        assert words in found.sentence

    def test_the_time_of_the_call_is_not_taken_for_skew(self) -> None:
        answer = identity_pb2.WhoAmIResponse()
        answer.coordinator_time.FromDatetime(NOON + timedelta(seconds=40))
        asked, answered = NOON, NOON + timedelta(seconds=80)
        assert MembershipReply.of(answer, asked, answered).ahead == timedelta(0)


class TestIdentity:
    def test_a_key_that_others_can_read_is_noticed(self, tmp_path: Path) -> None:
        key = tmp_path / "key.pem"
        key.touch(0o600)
        assert key_finding(key).status is Status.OK
        key.chmod(0o640)
        found = key_finding(key)
        assert found.status is Status.WARNING
        assert "0640" in found.sentence
        assert "chmod 600" in found.next_step

    def test_an_admin_is_no_silo(self, tmp_path: Path) -> None:
        files = IdentityFiles(tmp_path, b"", b"", b"", "c:1", "rhine", "north")
        answer = identity_pb2.WhoAmIResponse(
            role=identity_pb2.MEMBER_ROLE_ADMIN, name="north", consortium="rhine"
        )
        found = role_finding(answer, files)
        assert found.status is Status.FAILED
        assert "as admin north, not as silo north" in found.sentence
        answer.role = identity_pb2.MEMBER_ROLE_SILO
        assert role_finding(answer, files).status is Status.OK
        answer.consortium = "elsewhere"
        found = role_finding(answer, files)
        assert found.status is Status.FAILED
        assert f"of the consortium elsewhere, not of {files.consortium}" in found.sentence


class TestDisk:
    @pytest.mark.parametrize(
        ("free", "needed", "status"),
        [
            (3 * GIB, GIB, Status.OK),
            (3 * GIB, 5 * GIB // 2, Status.WARNING),
            (3 * GIB, 3 * GIB, Status.FAILED),
            (0, 0, Status.FAILED),
        ],
    )
    def test_public_sets_to_come_need_room(
        self, tmp_path: Path, free: int, needed: int, status: Status
    ) -> None:
        assert check_disk("disk", [tmp_path], needed, lambda folder: free).status is status

    def test_the_fullest_disk_counts(self, tmp_path: Path) -> None:
        (tmp_path / "full").mkdir()
        found = check_disk(
            "disk",
            [tmp_path, tmp_path / "full"],
            0,
            lambda folder: 0 if folder.name == "full" else 9 * GIB,
        )
        assert found.status is Status.FAILED
        assert str(tmp_path / "full") in found.sentence

    def test_a_folder_that_is_yet_to_be_made_is_judged_by_the_one_above(
        self, tmp_path: Path
    ) -> None:
        found = check_disk("disk", [tmp_path / "home" / "agent"], 0)
        assert str(tmp_path) in found.sentence
        assert not (tmp_path / "home").exists()

    def test_a_folder_that_takes_no_file_is_named(self) -> None:
        # Not even root can make files there.
        found = check_disk("disk", [Path("/proc/self")], 0)
        assert found.status is Status.FAILED
        assert "/proc/self cannot be written to" in found.sentence


class TestEnvironment:
    def test_proxies_that_are_not_used_are_named(self) -> None:
        around = {"https_proxy": "http://wall:3128", "HTTP_PROXY": "http://wall:3128"}
        found = environment_finding(around, None, reached=True)
        assert found.status is Status.OK
        assert "HTTP_PROXY and https_proxy are set and not used" in found.sentence
        found = environment_finding(around, None, reached=False)
        assert found.status is Status.WARNING
        assert "CONSILIUM_PROXY" in found.next_step

    def test_exceptions_do_not_go_round_the_proxy(self) -> None:
        found = environment_finding({"no_proxy": "c"}, Proxy("wall", 3128), reached=True)
        assert found.sentence == "no_proxy is set and not used: everything goes through wall:3128."

    @pytest.mark.parametrize(
        ("around", "status", "word"),
        [
            ({}, Status.OK, "Nothing"),
            ({"GRPC_VERBOSITY": "error"}, Status.OK, "Nothing"),
            ({"GRPC_VERBOSITY": "debug"}, Status.OK, "GRPC_VERBOSITY"),
            ({"GRPC_TRACE": "http"}, Status.WARNING, "GRPC_TRACE"),
        ],
    )
    def test_what_makes_grpc_talk_is_named(
        self, around: dict[str, str], status: Status, word: str
    ) -> None:
        found = environment_finding(around, None, reached=True)
        assert found.status is status
        assert word in found.sentence

    def test_a_password_that_ps_shows_is_warned_of(self) -> None:
        found = environment_finding({}, None, reached=True, password_on_command_line=True)
        assert found.status is Status.WARNING
        assert "--proxy @FILE" in found.next_step


class TestProxySetting:
    def test_a_url_comes_apart_and_together(self) -> None:
        proxy = Proxy.parse("http://ada:p%40ss%3A%2F@wall.example.org:3128")
        assert proxy == Proxy("wall.example.org", 3128, "ada", "p@ss:/")
        assert proxy.url == "http://ada:p%40ss%3A%2F@wall.example.org:3128"
        assert proxy.authorization == "Basic YWRhOnBAc3M6Lw=="

    def test_without_a_user_nobody_is_named(self) -> None:
        proxy = Proxy.parse(" http://[::1]:3128/ ")
        assert (proxy.url, proxy.authorization) == ("http://[::1]:3128", None)

    @pytest.mark.parametrize(
        "text",
        [
            "wall:3128",
            "https://ada:secret@wall:3128",
            "socks5://ada:secret@wall:1080",
            "http://ada:secret@wall",
            "http://ada:secret@wall:port",
            "http://ada:secret@wall:3128/path",
            "http://ada:secret@:3128",
        ],
    )
    def test_what_is_no_proxy_is_refused_without_quoting_it(self, text: str) -> None:
        with pytest.raises(ConfigurationError) as caught:
            Proxy.parse(text)
        assert "secret" not in caught.value.sentence + caught.value.hint
        assert "http://proxy.example.org:3128" in caught.value.hint

    def test_the_password_is_never_printed(self) -> None:
        proxy = Proxy.parse("http://ada:secret@wall:3128")
        assert "secret" not in f"{proxy} {proxy!r} {proxy.address}"

    def test_a_file_keeps_the_password_off_the_command_line(self, tmp_path: Path) -> None:
        path = tmp_path / "proxy"
        path.write_text("http://ada:secret@wall:3128\n")
        assert read_proxy(f"@{path}") == Proxy("wall", 3128, "ada", "secret")
        assert read_proxy("") is None
        path.write_text("\n")
        for lost in (path, tmp_path / "lost"):
            with pytest.raises(ConfigurationError, match=str(lost)):
                read_proxy(f"@{lost}")

    def test_a_child_without_network_does_not_inherit_it(self) -> None:
        around = {"CONSILIUM_PROXY": "http://ada:secret@wall:3128", "PATH": "/bin"}
        assert without_proxy(around) == {"PATH": "/bin"}


class TestThePrivateSide:
    def home(self, folder: Path, model: str = "decision_tree") -> SiloHome:
        (folder / "data.csv").write_text("a,state\n1,ill\n2,well\n")
        (folder / "silo.yaml").write_text(
            f"data: {{path: data.csv, label: state}}\nmodel: {model}\n"
        )
        return SiloHome(folder)

    def found(self, checks: TrainerChecks) -> dict[str, Finding]:
        return {finding.name: finding for finding in checks.findings()}

    def test_a_silo_that_is_ready(self, tmp_path: Path) -> None:
        private = "decision_tree\nprivacy: {mechanism: private_labeller, epsilon: 1}"
        checks = TrainerChecks(self.home(tmp_path, private))
        found = self.found(checks)
        assert worst(list(found.values())) is Status.OK
        assert "can be read" in found["private data"].sentence
        assert "2 rows" in checks.details[0]
        assert "No task" in found["data schema"].sentence

    @pytest.mark.parametrize(
        ("privacy", "says"),
        [
            ("{mechanism: none}", "ε = ∞"),
            (
                "{mechanism: {name: xor, sensitivity: empirical}, epsilon: 1}",
                "an estimate, not a guarantee",
            ),
        ],
    )
    def test_votes_without_a_guarantee_are_pointed_out(
        self, tmp_path: Path, privacy: str, says: str
    ) -> None:
        home = self.home(tmp_path, f"decision_tree\nprivacy: {privacy}")
        found = self.found(TrainerChecks(home))["privacy"]
        assert (found.status, says in found.sentence) == (Status.WARNING, True)

    def test_a_broken_silo_yaml_leaves_the_rest_untried(self, tmp_path: Path) -> None:
        home = self.home(tmp_path, "decision_tree\ntypo: 1")
        found = self.found(TrainerChecks(home))
        assert found["silo.yaml"].status is Status.FAILED
        assert "`typo` is not a known key" in found["silo.yaml"].sentence
        for name in (
            "policy",
            "privacy",
            "ledger",
            "GPU",
            "private data",
            "learner",
            "data schema",
        ):
            assert found[name].status is Status.SKIPPED

    def test_a_missing_gpu_matters_only_to_who_asks_for_one(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        home = self.home(tmp_path, "{name: xgboost, parameters: {device: cuda}}")
        monkeypatch.setattr(rehearsals, "cuda_devices", lambda: 0)
        assert self.found(TrainerChecks(home))["GPU"].status is Status.WARNING
        monkeypatch.setattr(rehearsals, "cuda_devices", lambda: 2)
        assert self.found(TrainerChecks(home))["GPU"].sentence == "The driver reports 2."
        monkeypatch.setattr(rehearsals, "cuda_devices", lambda: 0)
        found = self.found(TrainerChecks(self.home(tmp_path)))["GPU"]
        assert (found.status, "CPU" in found.sentence) == (Status.OK, True)

    def test_a_trainer_that_could_reach_the_network_is_noticed(self, tmp_path: Path) -> None:
        home = self.home(tmp_path)
        for mode, status in ((Mode.NONE, Status.WARNING), (Mode.OWN_NAMESPACE, Status.OK)):
            checks = TrainerChecks(home, isolation=Isolation(mode, "said why"))
            found = self.found(checks)["isolation"]
            assert (found.status, "said why" in found.sentence) == (status, True)

    def test_a_full_disk_is_noticed(self, tmp_path: Path) -> None:
        found = self.found(TrainerChecks(self.home(tmp_path), free=lambda folder: 0))
        assert found["trainer's disk"].status is Status.FAILED

    def test_cells_that_do_not_fit_are_told_at_home_and_change_no_finding(
        self, tmp_path: Path
    ) -> None:
        home = self.home(tmp_path)
        (tmp_path / "public.csv").write_text("a\n1\n2\n3\n")
        public = convert(tmp_path / "public.csv", tmp_path / "sets")
        told = []
        for cell in ("7", "smith", "", "inf"):
            (tmp_path / "data.csv").write_text(f"a,state\n{cell},ill\n8,well\n")
            checks = TrainerChecks(home, public.path, free=lambda folder: 2**40)
            found = [finding.as_json() for finding in checks.findings()]
            told.append((json.dumps(found), list(checks.details)))
        assert len({found for found, _ in told}) == 1
        details = [details[1:] for _, details in told]
        assert details[0] == []
        assert "Column a: cells that hold no number: 1; they count as empty." in details[1][0]
        assert "smith" in details[1][1]
        assert "Column a: cells that are empty" in details[2][0]
        assert "Column a: cells that are infinite: 1" in details[3][0]

    def test_a_learner_of_ones_own_may_fail_in_any_way(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*arguments: object, **named: object) -> None:
            raise ZeroDivisionError("patient smith")

        monkeypatch.setattr(rehearsals, "build", fail)
        found = self.found(TrainerChecks(self.home(tmp_path)))
        assert found["learner"].status is Status.FAILED
        assert "ZeroDivisionError" in found["learner"].sentence
        assert "smith" not in found["learner"].sentence
        assert found["data schema"].status is Status.SKIPPED

"""When certificates are renewed, what is accepted as a new one, and what a wrong clock does to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from coordinator.pki.authority import Authority
from coordinator.pki.key_request import key_hash
from silo_agent.agent.clock import CoordinatorClock, skew
from silo_agent.agent.coordinator_client import CoordinatorClient
from silo_agent.agent.metrics.instruments import AgentMetrics
from silo_agent.agent.renewal import Renewal, urgent
from wire.consilium.v1.identity_pb2 import RenewRequest, RenewResponse
from wire.errors import (
    AUTHORITY_MISMATCH,
    MESSAGE_MALFORMED,
    REQUEST_INVALID,
    UNREACHABLE,
    Fault,
    Refusal,
)
from wire.identity.files import IdentityFiles, key_pem, new_key, pending_key
from wire.identity.identity import BACKDATED, Certificate, Role, issuer_of
from wire.net.enrolment import request_pem
from wire.net.renewal import renew_identity, renewal_due_at

pytestmark = pytest.mark.slow

NOW = datetime(2031, 5, 6, 7, 8, 9, tzinfo=UTC)
SECOND = timedelta(seconds=1)
DAY = timedelta(days=1)
WEEK = 7 * DAY


@dataclass
class Coordinator:
    """Certifies whatever key it is asked for; the first `failures` answers are errors."""

    authority: Authority
    bundle: bytes
    now: Callable[[], datetime] = lambda: NOW
    lifetime: timedelta = WEEK
    name: str = "hospital-a"
    alter: Callable[[RenewResponse], None] = lambda answer: None
    failures: list[Exception] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)

    async def renew(self, request: RenewRequest) -> RenewResponse:
        csr = request.certificate_request_pem.encode()
        self.keys.append(key_hash(csr))
        if self.failures:
            raise self.failures.pop(0)
        certificate = self.authority.issue(csr, Role.SILO, self.name, self.lifetime, self.now())
        answer = RenewResponse(
            certificate_pem=certificate.decode(), authorities_pem=self.bundle.decode()
        )
        self.alter(answer)
        return answer


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.create(tmp_path / "authority", "rhine-clinics", NOW)


@pytest.fixture
def coordinator(authority: Authority) -> Coordinator:
    return Coordinator(authority, authority.certificate_pem)


@pytest.fixture
def silo(authority: Authority, tmp_path: Path) -> IdentityFiles:
    return joined(authority, tmp_path / "identity")


def joined(authority: Authority, folder: Path, lifetime: timedelta = WEEK) -> IdentityFiles:
    key = new_key()
    request = request_pem(key, "hospital-a").encode()
    files = IdentityFiles(
        folder=folder,
        key_pem=key_pem(key),
        certificate_pem=authority.issue(request, Role.SILO, "hospital-a", lifetime, NOW),
        authorities_pem=authority.certificate_pem,
        coordinator_address="c.example.org:7443",
        consortium="rhine-clinics",
        name="hospital-a",
    )
    files.store()
    return files


def outage() -> Refusal:
    return Refusal(UNREACHABLE, address="c.example.org:7443", why="it is down")


class TestWhen:
    @pytest.mark.parametrize("life", [WEEK, 12 * SECOND, 30 * DAY])
    def test_two_thirds_of_a_life_are_counted_from_its_issue(
        self, authority: Authority, tmp_path: Path, life: timedelta
    ) -> None:
        certificate = joined(authority, tmp_path / "identity", life).certificate
        assert renewal_due_at(certificate) == NOW + life * 2 / 3

    @given(st.floats(0, 1, exclude_max=True))
    def test_silos_that_joined_together_do_not_renew_together(self, jitter: float) -> None:
        certificate = _certificate(WEEK)
        due = renewal_due_at(certificate, jitter)
        assert NOW + WEEK * 0.6 <= due <= NOW + WEEK * 2 / 3
        assert due < renewal_due_at(certificate) or jitter < 1e-9

    def test_the_last_day_is_urgent_and_of_a_short_life_the_last_fifth(self) -> None:
        week, minute = _certificate(WEEK), _certificate(60 * SECOND)
        assert not urgent(week, NOW + 5.9 * DAY)
        assert urgent(week, NOW + 6.1 * DAY)
        assert not urgent(minute, NOW + 47 * SECOND)
        assert urgent(minute, NOW + 49 * SECOND)
        assert urgent(minute, NOW + DAY)


class TestWhatIsAccepted:
    def test_a_new_key_is_certified_and_stored(
        self, silo: IdentityFiles, coordinator: Coordinator
    ) -> None:
        fresh = asyncio.run(renew_identity(silo, coordinator.renew, NOW))
        assert fresh.key_pem != silo.key_pem
        assert fresh.certificate.identity == silo.certificate.identity
        assert IdentityFiles.load(silo.folder) == fresh
        assert fresh.key_path.stat().st_mode & 0o777 == 0o600

    def test_a_lost_answer_is_asked_for_with_the_same_key(
        self, silo: IdentityFiles, coordinator: Coordinator
    ) -> None:
        coordinator.failures = [outage()]
        with pytest.raises(Refusal):
            asyncio.run(renew_identity(silo, coordinator.renew, NOW))
        assert IdentityFiles.load(silo.folder) == silo
        asyncio.run(renew_identity(silo, coordinator.renew, NOW))
        assert coordinator.keys[0] == coordinator.keys[1]

    @pytest.mark.parametrize("reason", ["old", "withdrawn"])
    def test_a_key_of_a_renewal_that_was_lost_long_ago_is_given_up(
        self, silo: IdentityFiles, coordinator: Coordinator, reason: str
    ) -> None:
        kept = pending_key(silo.folder)
        times = iter([NOW - WEEK, NOW])
        coordinator.now = lambda: next(times)
        if reason == "withdrawn":
            coordinator.failures = [Refusal(REQUEST_INVALID, why="certified before")]
            next(times)
        fresh = asyncio.run(renew_identity(silo, coordinator.renew, NOW))
        assert fresh.key_pem != key_pem(kept)
        assert fresh.certificate.issued_at == NOW
        assert len(set(coordinator.keys)) == 2

    @pytest.mark.parametrize(
        ("spoilt", "fault"),
        [
            ("name", MESSAGE_MALFORMED),
            ("key", MESSAGE_MALFORMED),
            ("garbage", MESSAGE_MALFORMED),
            ("no bundle", MESSAGE_MALFORMED),
            ("bundle", AUTHORITY_MISMATCH),
        ],
    )
    def test_an_answer_that_is_not_ours_changes_nothing(
        self,
        silo: IdentityFiles,
        coordinator: Coordinator,
        tmp_path: Path,
        spoilt: str,
        fault: Fault,
    ) -> None:
        stranger = Authority.create(tmp_path / "stranger", "rhine-clinics", NOW)

        def alter(answer: RenewResponse) -> None:
            if spoilt == "key":
                answer.certificate_pem = silo.certificate_pem.decode()
            elif spoilt == "garbage":
                answer.certificate_pem = "nonsense"
            elif spoilt == "no bundle":
                answer.authorities_pem = ""
            elif spoilt == "bundle":
                answer.authorities_pem = stranger.certificate_pem.decode()

        coordinator.alter = alter
        coordinator.name = "hospital-b" if spoilt == "name" else "hospital-a"
        with pytest.raises(Refusal) as caught:
            asyncio.run(renew_identity(silo, coordinator.renew, NOW))
        assert caught.value.code == fault.code
        assert IdentityFiles.load(silo.folder) == silo

    def test_a_new_authority_comes_with_the_bundle(
        self, silo: IdentityFiles, authority: Authority, tmp_path: Path
    ) -> None:
        new = Authority.create(tmp_path / "new", "rhine-clinics", NOW, generation=2)
        bundle = new.certificate_pem + authority.certificate_pem
        fresh = asyncio.run(renew_identity(silo, Coordinator(new, bundle).renew, NOW))
        assert set(fresh.authorities) == {new.fingerprint, authority.fingerprint}
        assert issuer_of(fresh.certificate_pem, bundle) == new.fingerprint


class Stop(Exception):
    """Ends a loop that never ends."""


class Link:
    """Stands in for the connection; after `last` replacements the test is over."""

    def __init__(self, identity: IdentityFiles, coordinator: Coordinator, last: int) -> None:
        self.identity = identity
        self.renew = coordinator.renew
        self.replaced: list[datetime] = []
        self._now = coordinator.now
        self._last = last

    async def replace(self, identity: IdentityFiles) -> None:
        self.identity = identity
        self.replaced.append(self._now())

    @property
    def over(self) -> bool:
        return len(self.replaced) >= self._last


@dataclass
class Loop:
    """A renewal loop in a world where time passes only while it waits."""

    silo: IdentityFiles
    coordinator: Coordinator
    last: int = 1
    now: datetime = NOW
    waits: list[float] = field(default_factory=list)
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    during: Callable[[Renewal], None] = lambda renewal: None

    def run(self) -> tuple[Link, list[Any]]:
        self.coordinator.now = lambda: self.now
        link = Link(self.silo, self.coordinator, self.last)

        async def wait(event: asyncio.Event, seconds: float) -> None:
            if link.over:
                raise Stop
            self.waits.append(seconds)
            self.now += timedelta(seconds=seconds)
            self.during(renewal)

        renewal = Renewal(
            cast("CoordinatorClient", link),
            AgentMetrics(self.registry),
            lambda: self.now,
            jitter=lambda: 0.0,
            wait=wait,
        )
        with capture_logs() as logs, pytest.raises(Stop):
            asyncio.run(renewal.run())
        return link, logs

    def metric(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, labels)


class TestTheLoop:
    def test_certificates_are_renewed_at_two_thirds_of_their_life_one_after_the_other(
        self, silo: IdentityFiles, coordinator: Coordinator
    ) -> None:
        loop = Loop(silo, coordinator, last=3)
        link, _ = loop.run()
        assert link.replaced == [NOW + WEEK * 2 / 3 * times for times in (1, 2, 3)]
        assert len(set(coordinator.keys)) == 3
        # A clock that is set, or a machine that slept, is noticed within the minute.
        assert max(loop.waits) <= 60
        renewals = "consilium_agent_certificate_renewals_total"
        assert loop.metric(renewals, outcome="renewed") == 3
        expiry = loop.metric("consilium_certificate_expiry_timestamp_seconds")
        assert expiry == (NOW + 3 * WEEK).timestamp()

    def test_a_failed_renewal_is_told_and_tried_again_ever_more_loudly(
        self, silo: IdentityFiles, coordinator: Coordinator
    ) -> None:
        # More failures than fit into the third of a week that is left.
        coordinator.failures = [outage() for _ in range(600)]
        loop = Loop(silo, coordinator)
        link, logs = loop.run()
        failed = [entry for entry in logs if entry["event"] == "renewal_failed"]
        assert len(failed) == 600
        assert failed[0]["log_level"] == "warning"
        assert failed[-1]["log_level"] == "error"
        assert "expires at 2031-05-13 07:08:09 UTC" in failed[0]["sentence"]
        assert "cannot be reached: it is down" in failed[0]["sentence"]
        assert "firewall" in failed[0]["hint"]
        assert len(link.replaced) == 1
        retries = loop.waits[-600:]
        assert max(retries[:200]) > 60
        assert max(retries) <= 900
        renewals = "consilium_agent_certificate_renewals_total"
        assert loop.metric(renewals, outcome="failed") == 600

    def test_a_disk_that_is_full_is_a_failure_like_any_other(
        self, silo: IdentityFiles, coordinator: Coordinator
    ) -> None:
        coordinator.failures = [OSError("No space left on device")]
        _, logs = Loop(silo, coordinator).run()
        (failed,) = [entry for entry in logs if entry["event"] == "renewal_failed"]
        assert "No space left on device" in failed["sentence"]

    def test_a_certificate_of_an_authority_that_no_longer_signs_is_renewed_at_once(
        self, silo: IdentityFiles, authority: Authority, tmp_path: Path
    ) -> None:
        new = Authority.create(tmp_path / "new", "rhine-clinics", NOW, generation=2)
        bundle = new.certificate_pem + authority.certificate_pem
        loop = Loop(silo, Coordinator(new, bundle))
        loop.during = lambda renewal: renewal.update_authority(new.fingerprint)
        link, logs = loop.run()
        assert len(loop.waits) == 1
        assert len(link.replaced) == 1
        (changed,) = [entry for entry in logs if entry["event"] == "authorities_changed"]
        assert set(changed["trusted"]) == {new.fingerprint, authority.fingerprint}

    def test_the_authority_we_have_is_no_reason_to_renew(
        self, silo: IdentityFiles, coordinator: Coordinator, authority: Authority
    ) -> None:
        loop = Loop(silo, coordinator)
        loop.during = lambda renewal: renewal.update_authority(authority.fingerprint)
        link, _ = loop.run()
        assert link.replaced == [NOW + WEEK * 2 / 3]


class TestClocks:
    @given(
        ahead=st.timedeltas(min_value=-DAY, max_value=DAY),
        out=st.timedeltas(min_value=timedelta(0), max_value=60 * SECOND),
        back=st.timedeltas(min_value=timedelta(0), max_value=60 * SECOND),
    )
    def test_the_way_there_and_back_is_never_taken_for_a_wrong_clock(
        self, ahead: timedelta, out: timedelta, back: timedelta
    ) -> None:
        found = skew(NOW + ahead, NOW + ahead + out + back, NOW + out)
        assert abs(found) <= abs(ahead)
        assert abs(found - ahead) <= max(out, back)
        if ahead == timedelta(0):
            assert found == timedelta(0)

    def heard(self, *ahead: timedelta) -> tuple[CoordinatorClock, list[Any], CollectorRegistry]:
        """A clock that was `ahead` at one heartbeat after the other."""
        metrics = AgentMetrics(registry := CollectorRegistry())
        clock = CoordinatorClock(lambda: NOW, metrics.clock_skew)
        with capture_logs() as logs:
            for each in ahead:
                clock.compare(NOW, NOW + SECOND, NOW - each)
        return clock, logs, registry

    @pytest.mark.parametrize(
        ("ahead", "words"),
        [
            (93 * SECOND, "93 s ahead of the coordinator's"),
            (-93 * SECOND, "92 s behind the coordinator's"),
        ],
    )
    def test_a_wrong_clock_is_told_once_in_plain_words(self, ahead: timedelta, words: str) -> None:
        _, logs, registry = self.heard(ahead, ahead + SECOND / 2, ahead)
        (told,) = logs
        assert (told["event"], told["log_level"]) == ("clock_skew", "warning")
        assert words in told["sentence"]
        assert "NTP" in told["hint"]
        shown = registry.get_sample_value("consilium_agent_clock_skew_seconds")
        assert shown is not None
        assert abs(shown - ahead.total_seconds()) <= 1

    def test_a_few_seconds_are_nothing_to_talk_about(self) -> None:
        assert self.heard(29 * SECOND, -29 * SECOND)[1] == []

    def test_a_clock_that_goes_wrong_again_is_told_again(self) -> None:
        _, logs, _ = self.heard(60 * SECOND, timedelta(0), 60 * SECOND, 200 * SECOND)
        assert [entry["event"] for entry in logs] == [
            "clock_skew",
            "clock_skew_resolved",
            "clock_skew",
            "clock_skew",
        ]

    def test_certificates_live_by_the_coordinators_time(self) -> None:
        clock, _, _ = self.heard(-3 * DAY)
        assert abs(clock() - (NOW + 3 * DAY)) <= SECOND
        assert clock.local() == NOW

    def test_a_coordinator_that_tells_no_time_is_no_reason_to_worry(self) -> None:
        metrics = AgentMetrics(CollectorRegistry())
        clock = CoordinatorClock(lambda: NOW, metrics.clock_skew)
        clock.compare(NOW, NOW, None)
        assert clock() == NOW


def _certificate(life: timedelta) -> Certificate:
    return Certificate(None, "", "", NOW - BACKDATED, NOW + life)

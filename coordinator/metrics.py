"""What operators watch. The registry is passed in; nothing here is global, no label is unbounded."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from coordinator.store.records import SiloRecord, TaskAgreement
from wire import __version__
from wire.errors import Refusal

_REMEMBERED = timedelta(days=1)
"""How long a finished task's agreement is shown: methods of one round are finished as soon as there is any."""


class Metrics:
    """The coordinator's instruments."""

    def __init__(self, registry: CollectorRegistry) -> None:
        build = Gauge(
            "consilium_build_info",
            "Version of the software; always 1.",
            ["version", "python", "component"],
            registry=registry,
        )
        build.labels(__version__, platform.python_version(), "coordinator").set(1)
        self.ballots = Counter(
            "consilium_ballots_accepted", "Ballots stored.", ["task"], registry=registry
        )
        self.ballot_bytes = Counter(
            "consilium_ballot_bytes", "Bytes of ballots stored.", ["task"], registry=registry
        )
        self.refusals = Counter(
            "consilium_refusals",
            "Calls refused, by the error catalogue's code.",
            ["code"],
            registry=registry,
        )
        self.handshakes_refused = Counter(
            "consilium_tls_handshakes_refused",
            "Connections that never became a call, by reason.",
            ["reason"],
            registry=registry,
        )
        self.renewals = Counter(
            "consilium_certificate_renewals",
            "Certificates renewed: silo, admin or server.",
            ["kind"],
            registry=registry,
        )
        self.server_expiry = Gauge(
            "consilium_server_certificate_expiry_timestamp_seconds",
            "When the certificate this server shows expires.",
            registry=registry,
        )
        self.authority_expiry = Gauge(
            "consilium_authority_expiry_timestamp_seconds",
            "When the authority that signs now expires.",
            registry=registry,
        )
        self.rounds_closed = Counter(
            "consilium_rounds_closed", "Rounds closed.", ["task", "by"], registry=registry
        )
        self.round_open = Gauge(
            "consilium_round_open",
            "Number of the open round; 0 if none.",
            ["task"],
            registry=registry,
        )
        self.votes_received = Gauge(
            "consilium_round_votes_received",
            "Ballots in the open round.",
            ["task"],
            registry=registry,
        )
        self.votes_expected = Gauge(
            "consilium_round_votes_expected",
            "Silos expected to vote in the open round.",
            ["task"],
            registry=registry,
        )
        self.deadline = Gauge(
            "consilium_round_deadline_timestamp_seconds",
            "When the open round closes at the latest.",
            ["task"],
            registry=registry,
        )
        self.churn = Gauge(
            "consilium_consensus_churn_ratio",
            "Share of rows whose label changed in the last consensus.",
            ["task"],
            registry=registry,
        )
        self.abstention = Gauge(
            "consilium_consensus_abstention_ratio",
            "Share of rows without a label in the last consensus.",
            ["task"],
            registry=registry,
        )
        self.party_epsilon = Gauge(
            "consilium_party_epsilon_spent",
            "What noisy consensuses of a task have cost each silo, at δ = 0; 0 without party-level noise.",
            ["task"],
            registry=registry,
        )
        self.round_seconds = Histogram(
            "consilium_round_duration_seconds",
            "From opening a round to its consensus.",
            ["task"],
            buckets=(0.1, 0.5, 1, 5, 15, 60, 300, 900, 3600, 14400, 86400),
            registry=registry,
        )
        self.close_seconds = Histogram(
            "consilium_round_close_seconds",
            "From the decision to close a round to its published consensus.",
            registry=registry,
        )


class SiloCollector(Collector):
    """How silos are, read from the store at every scrape: a lease that ends rings no bell."""

    def __init__(
        self, read: Callable[[], Iterable[SiloRecord]], clock: Callable[[], datetime]
    ) -> None:
        self._read = read
        self._clock = clock

    def describe(self) -> Iterable[Metric]:
        """The families without samples, so that registering does not touch the store."""
        return self._families()

    def collect(self) -> Iterable[Metric]:
        """The families with one sample per silo."""
        connected, last_seen, expiry = self._families()
        now = self._clock()
        try:
            silos = list(self._read())
        except Refusal:
            # Without its database the page still shows everything else.
            silos = []
        for silo in silos:
            connected.add_metric([silo.name], silo.connected(now))
            if silo.last_seen_at is not None:
                last_seen.add_metric([silo.name], silo.last_seen_at.timestamp())
            if silo.certificate_expires_at is not None:
                expiry.add_metric([silo.name], silo.certificate_expires_at.timestamp())
        return connected, last_seen, expiry

    def _families(self) -> tuple[GaugeMetricFamily, GaugeMetricFamily, GaugeMetricFamily]:
        return (
            GaugeMetricFamily(
                "consilium_silo_connected", "1 while a silo's lease runs.", labels=["silo"]
            ),
            GaugeMetricFamily(
                "consilium_silo_last_seen_timestamp_seconds",
                "Last sign of life of a silo.",
                labels=["silo"],
            ),
            GaugeMetricFamily(
                "consilium_silo_certificate_expiry_timestamp_seconds",
                "When the newest certificate of a silo expires.",
                labels=["silo"],
            ),
        )


class AgreementCollector(Collector):
    """How far silos agree with the latest consensus, read from the store: every replica shows the same."""

    def __init__(
        self, read: Callable[[datetime], Iterable[TaskAgreement]], clock: Callable[[], datetime]
    ) -> None:
        self._read = read
        self._clock = clock

    def describe(self) -> Iterable[Metric]:
        """The family without samples, so that registering does not touch the store."""
        return (self._family(),)

    def collect(self) -> Iterable[Metric]:
        """One sample per task and silo that has been compared in at least one row."""
        family = self._family()
        try:
            tasks = list(self._read(self._clock() - _REMEMBERED))
        except Refusal:
            tasks = []
        for task in tasks:
            for silo, rows in task.silos.items():
                if rows.compared:
                    family.add_metric([task.task, silo], rows.same / rows.compared)
        return (family,)

    def _family(self) -> GaugeMetricFamily:
        return GaugeMetricFamily(
            "consilium_silo_agreement_ratio",
            "Share of a silo's votes in the latest round that the consensus confirms.",
            labels=["task", "silo"],
        )

"""The consortium at a glance, read from the coordinator."""

from __future__ import annotations

from panels import Dashboard, Panel, Query, Row, Variable

from pages.seldom import durations, in_an_hour
from pages.words import DAY, UP

_COORDINATORS = 'count(consilium_build_info{component="coordinator"})'
_FIRING = 'ALERTS{alertname=~"Consilium.*", alertstate="firing"}'
_TASK = Variable("task", "Task", "label_values(consilium_task_status, task)", several=True)
_OF_TASK = '{task=~"$task"}'

CONSORTIUM = Dashboard(
    "consortium",
    "Consortium",
    "Who is there, which rounds are open and what the consensus looks like. Read from the coordinator.",
    variables=(_TASK,),
    rows=(
        Row(
            "Now",
            (
                Panel(
                    "Coordinators",
                    "Coordinators whose page Prometheus reads. Without one, nothing below is known.",
                    (Query(f"{_COORDINATORS} or vector(0)", "coordinators"),),
                    kind="stat",
                    width=3,
                    height=4,
                    limits=(1,),
                    falling=True,
                ),
                Panel(
                    "Silos connected",
                    "Active silos whose lease runs, and how many there are.",
                    (
                        Query("max(consilium_silos_connected)", "connected"),
                        Query('max(consilium_silos{status="active"})', "active"),
                    ),
                    kind="stat",
                    width=5,
                    height=4,
                ),
                Panel(
                    "Silos by status",
                    "Invited silos have yet to redeem their token; suspended and revoked ones are refused.",
                    (Query("max by (status) (consilium_silos)", "{{status}}"),),
                    kind="stat",
                    width=7,
                    height=4,
                ),
                Panel(
                    "Tasks running",
                    "Tasks with rounds going on; nothing while no coordinator's database answers.",
                    (
                        Query(
                            'count(max by (task) (consilium_task_status{status="running"}))'
                            " or 0 * max(consilium_store_up == 1)",
                            "running",
                        ),
                    ),
                    kind="stat",
                    width=3,
                    height=4,
                ),
                Panel(
                    "Database",
                    "Whether every coordinator's database answers.",
                    (Query("min(consilium_store_up)", "database"),),
                    kind="stat",
                    width=3,
                    height=4,
                    names=UP,
                    limits=(1,),
                    falling=True,
                ),
                Panel(
                    "Alerts",
                    "Alerts of Consilium that fire; nothing while no coordinator is there to tell.",
                    (Query(f"count({_FIRING}) or 0 * {_COORDINATORS}", "firing"),),
                    kind="stat",
                    width=3,
                    height=4,
                    limits=(1,),
                ),
                Panel(
                    "Firing alerts",
                    "Each has a page that says what it means and what to do: docs/runbooks/README.md lists them by this name,"
                    " and an alert's annotation `runbook_url` names its page. Empty is good.",
                    (
                        Query(
                            "max by (alertname, severity, task, silo, code, reason, instance, namespace, job) "
                            f"({_FIRING})"
                        ),
                    ),
                    kind="table",
                    width=24,
                    height=5,
                ),
            ),
        ),
        Row(
            "Rounds",
            (
                Panel(
                    "Tasks",
                    "Where each task is: its open round, ballots received, needed (quorum), possible (voted or able to) and expected.",
                    (
                        Query(f"max by (task, status) (consilium_task_status{_OF_TASK})"),
                        Query(f"max by (task) (consilium_round_open{_OF_TASK})", "round"),
                        Query(
                            f"max by (task) (consilium_round_votes_received{_OF_TASK})", "received"
                        ),
                        Query(f"max by (task) (consilium_round_votes_needed{_OF_TASK})", "needed"),
                        Query(
                            f"max by (task) (consilium_round_votes_possible{_OF_TASK})", "possible"
                        ),
                        Query(
                            f"max by (task) (consilium_round_votes_expected{_OF_TASK})", "expected"
                        ),
                        Query(
                            f"max by (task) (consilium_round_deadline_timestamp_seconds{_OF_TASK}) - time()",
                            "closes in",
                        ),
                        Query(
                            f"max by (task) (consilium_round_deadlines_missed{_OF_TASK})",
                            "deadlines missed",
                        ),
                    ),
                    kind="table",
                    width=24,
                    columns=(("closes in", "s", (0, 600)),),
                ),
                Panel(
                    "Votes in the open round",
                    "Ballots that came, and how many could still come. Possible below needed: the quorum is at risk.",
                    (
                        Query(
                            f"max by (task) (consilium_round_votes_received{_OF_TASK})",
                            "{{task}} received",
                        ),
                        Query(
                            f"max by (task) (consilium_round_votes_needed{_OF_TASK})",
                            "{{task}} needed",
                        ),
                        Query(
                            f"max by (task) (consilium_round_votes_possible{_OF_TASK})",
                            "{{task}} possible",
                        ),
                    ),
                ),
                Panel(
                    "Age of the open round",
                    "Time since it was opened; it falls to nothing when a round closes.",
                    (
                        Query(
                            f"time() - max by (task) (consilium_round_opened_timestamp_seconds{_OF_TASK})",
                            "{{task}}",
                        ),
                    ),
                    unit="s",
                ),
                Panel(
                    "Duration of rounds",
                    "From opening a round to its consensus, of rounds that closed within the hour before.",
                    durations("consilium_round_duration_seconds", "task", _OF_TASK),
                    unit="s",
                    sparse=True,
                ),
                Panel(
                    "Rounds closed",
                    "Why rounds closed in the time shown. Many by deadline: silos are too slow or away.",
                    (
                        Query(
                            f"sum by (by) (increase(consilium_rounds_closed_total{_OF_TASK}[$__range]))",
                            "{{by}}",
                        ),
                    ),
                    kind="bargauge",
                ),
                Panel(
                    "Ballots",
                    "Ballots stored within the hour before.",
                    (in_an_hour("consilium_ballots_accepted_total", "task", _OF_TASK),),
                    sparse=True,
                ),
                Panel(
                    "Ballots refused",
                    "Ballots refused within the hour before, by the error catalogue's code (docs/errors.md). Three, and more than"
                    " half as many as were stored: an alert.",
                    (in_an_hour("consilium_ballots_refused_total", "code"),),
                    limits=(3,),
                    sparse=True,
                ),
                Panel(
                    "Ballot bytes",
                    "What ballots of the hour before weigh: all that hospitals give away.",
                    (in_an_hour("consilium_ballot_bytes_total", "task", _OF_TASK),),
                    unit="bytes",
                    sparse=True,
                ),
            ),
        ),
        Row(
            "Consensus",
            (
                Panel(
                    "Churn",
                    "Share of rows whose label changed in the last consensus; it falls as a task settles.",
                    (
                        Query(
                            f"max by (task) (consilium_consensus_churn_ratio{_OF_TASK})", "{{task}}"
                        ),
                    ),
                    unit="percentunit",
                    width=6,
                    maximum=1,
                ),
                Panel(
                    "Abstention",
                    "Share of rows without a label in the last consensus.",
                    (
                        Query(
                            f"max by (task) (consilium_consensus_abstention_ratio{_OF_TASK})",
                            "{{task}}",
                        ),
                    ),
                    unit="percentunit",
                    width=6,
                    maximum=1,
                    limits=(0.3, 0.6),
                ),
                Panel(
                    "Agreement of each silo",
                    "Share of a silo's votes that the latest consensus confirms. Below 70 % and far from the others: the silo may be broken. Only the median unless metrics_per_silo is set in coordinator.yaml.",
                    (
                        Query(
                            f"max by (task, silo) (consilium_silo_agreement_ratio{_OF_TASK})",
                            "{{task}} {{silo}}",
                        ),
                        Query(
                            f"max by (task) (consilium_task_agreement_median_ratio{_OF_TASK})",
                            "{{task}} median",
                        ),
                    ),
                    unit="percentunit",
                    width=6,
                    maximum=1,
                    limits=(0.5, 0.7),
                    falling=True,
                ),
                Panel(
                    "Party-level ε",
                    "What noisy consensuses have cost each silo, at δ = 0; 0 without party-level noise.",
                    (
                        Query(
                            f"max by (task) (consilium_party_epsilon_spent{_OF_TASK})", "{{task}}"
                        ),
                    ),
                    unit="none",
                    width=6,
                ),
            ),
        ),
        Row(
            "Silos",
            (
                Panel(
                    "Silos",
                    "Last sign of life, time left on the certificate and version of each silo. Empty unless metrics_per_silo is set in coordinator.yaml.",
                    (
                        Query("max by (silo, version) (consilium_silo_version_info)"),
                        Query("max by (silo) (consilium_silo_connected)", "connected"),
                        Query(
                            "time() - max by (silo) (consilium_silo_last_seen_timestamp_seconds)",
                            "last seen ago",
                        ),
                        Query(
                            "max by (silo) (consilium_silo_certificate_expiry_timestamp_seconds) - time()",
                            "certificate left",
                        ),
                    ),
                    kind="table",
                    width=16,
                    columns=(
                        ("last seen ago", "s", ()),
                        ("certificate left", "s", (DAY, 2 * DAY)),
                        ("connected", "bool_on_off", (1,)),
                    ),
                ),
                Panel(
                    "Refusals",
                    "Calls refused per second in five minutes, by the error catalogue's code (docs/errors.md).",
                    (
                        Query(
                            "sum by (code) (rate(consilium_refusals_total[5m])) > 0",
                            "{{code}}",
                        ),
                    ),
                    unit="reqps",
                    limits=(0.5,),
                    sparse=True,
                ),
            ),
        ),
    ),
)

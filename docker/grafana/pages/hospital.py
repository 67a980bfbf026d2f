"""A hospital's own agent and trainer, read from the agent."""

from __future__ import annotations

from panels import Dashboard, Panel, Query, Row

from pages.words import CONNECTED, DAY, HERE, HOSPITAL_VARIABLES, quantiles, tile

HOSPITAL = Dashboard(
    "hospital",
    "Hospital",
    "A hospital's own agent and trainer, for its own Grafana. Read from the agent; nothing of it leaves the hospital.",
    variables=HOSPITAL_VARIABLES,
    rows=(
        Row(
            "Is it in order?",
            (
                tile(
                    "Coordinator",
                    "Whether the agent's watch stream is open.",
                    f"consilium_agent_connected{HERE}",
                    "coordinator",
                    names=CONNECTED,
                    limits=(1,),
                    falling=True,
                ),
                Panel(
                    "Trainer",
                    "The trainer found last, and how it is kept from the network: isolation none is a warning.",
                    (
                        Query(
                            f"max by (version, isolation) (consilium_agent_trainer_info{HERE})",
                        ),
                    ),
                    kind="table",
                    width=6,
                    height=5,
                ),
                tile(
                    "Certificate left",
                    "Time until this silo's certificate expires; it renews itself at two thirds of its life.",
                    f"consilium_certificate_expiry_timestamp_seconds{HERE} - time()",
                    "left",
                    unit="s",
                    limits=(DAY, 2 * DAY),
                    falling=True,
                ),
                tile(
                    "Waiting for approval",
                    "Tasks that a person here has yet to decide on (consilium agent tasks).",
                    f"sum(consilium_agent_waiting_for_approval{HERE}) or vector(0)",
                    "tasks",
                    limits=(1,),
                ),
                Panel(
                    "Clock skew",
                    "How far this machine's clock is ahead of the coordinator's. Beyond 30 s certificates get into trouble.",
                    (Query(f"consilium_agent_clock_skew_seconds{HERE}", "ahead"),),
                    unit="s",
                    width=6,
                    height=5,
                    limits=(10, 30),
                ),
            ),
        ),
        Row(
            "Training",
            (
                Panel(
                    "Duration of trainings",
                    "How long the trainer worked on a ballot or on the final model.",
                    quantiles("consilium_training_duration_seconds", "task", HERE),
                    unit="s",
                ),
                Panel(
                    "From asking to ballot",
                    "The same with the time a ballot waited for another training.",
                    quantiles("consilium_agent_vote_seconds", "task", HERE),
                    unit="s",
                ),
                Panel(
                    "Patients and GPUs",
                    "Patients the trainer learns from (rows, where each is protected by itself) and GPUs it computes on, 0 on the CPU.",
                    (
                        Query(f"consilium_training_units{HERE}", "{{task}} patients"),
                        Query(f"consilium_training_gpus{HERE}", "{{task}} GPUs"),
                    ),
                    kind="stat",
                ),
            ),
        ),
        Row(
            "Voting",
            (
                Panel(
                    "Last round voted in",
                    "It rises with the task's rounds.",
                    (Query(f"consilium_agent_round{HERE}", "{{task}}"),),
                    unit="none",
                ),
                Panel(
                    "Ballots",
                    "What became of ballots in the time shown: accepted, or the code of the refusal.",
                    (
                        Query(
                            f"sum by (task, outcome) (increase(consilium_agent_ballots_total{HERE}[$__range]))",
                            "{{task}} {{outcome}}",
                        ),
                    ),
                    kind="bargauge",
                ),
                Panel(
                    "Payload through the firewall",
                    "Ballots that left, and consensuses, public sets and extractors that came.",
                    (
                        Query(
                            f"sum by (direction, kind) (rate(consilium_agent_payload_bytes_total{HERE}[$__rate_interval]))",
                            "{{direction}} {{kind}}",
                        ),
                    ),
                    unit="Bps",
                ),
            ),
        ),
        Row(
            "Process",
            (
                Panel(
                    "Memory",
                    "Resident memory of the agent; the trainer's is its container's business.",
                    (Query(f"process_resident_memory_bytes{HERE}", "agent"),),
                    unit="bytes",
                ),
                Panel(
                    "CPU",
                    "CPU seconds per second.",
                    (Query(f"rate(process_cpu_seconds_total{HERE}[$__rate_interval])", "agent"),),
                    unit="percentunit",
                ),
                Panel(
                    "Renewals",
                    "Attempts to renew the certificate in the last week.",
                    (
                        Query(
                            f"sum by (outcome) (increase(consilium_agent_certificate_renewals_total{HERE}[7d]))",
                            "{{outcome}}",
                        ),
                    ),
                    kind="stat",
                ),
            ),
        ),
    ),
)

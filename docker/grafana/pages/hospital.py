"""A hospital's own agent and trainer, read from the agent."""

from __future__ import annotations

from panels import Dashboard, Panel, Query, Row

from pages.words import CONNECTED, DAY, HOSPITAL_VARIABLES, UP, here, quantiles_of_a_day, tile

_INCREASE = here("increase(consilium_agent_ballots_total[$__range])", "$__range")
_ACCEPTED = here(
    'increase(consilium_agent_ballots_total{outcome="accepted"}[$__range])', "$__range"
)

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
                    "Whether the agent's watch stream is open. An agent that does not run is away, too.",
                    f"max({here('consilium_agent_connected')}) or vector(0)",
                    "coordinator",
                    names=CONNECTED,
                    limits=(1,),
                    falling=True,
                ),
                tile(
                    "Trainer",
                    "Whether the trainer answers its agent; it does while it trains.",
                    f"max({here('consilium_agent_trainer_up')}) or vector(0)",
                    "trainer",
                    names=UP,
                    limits=(1,),
                    falling=True,
                ),
                tile(
                    "Certificate left",
                    "Time until this silo's certificate expires; it renews itself at two thirds of its life.",
                    f"max({here('consilium_certificate_expiry_timestamp_seconds')}) - time()",
                    "left",
                    unit="s",
                    limits=(DAY, 2 * DAY),
                    falling=True,
                ),
                tile(
                    "Waiting for approval",
                    "Running tasks that a person here has yet to decide on (consilium agent tasks).",
                    f"sum({here('consilium_agent_waiting_for_approval')}) or vector(0)",
                    "tasks",
                    limits=(1,),
                ),
                Panel(
                    "Trainer's isolation",
                    "The trainer found last, and how it is kept from the network: isolation none is a warning.",
                    (
                        Query(
                            f"max by (version, isolation) ({here('consilium_agent_trainer_info')})",
                        ),
                    ),
                    kind="table",
                    width=4,
                    height=5,
                ),
                Panel(
                    "Clock skew",
                    "How far this machine's clock is from the coordinator's, ahead or behind. Beyond 30 s certificates get into trouble.",
                    (Query(f"max({here('abs(consilium_agent_clock_skew_seconds)')})", "apart"),),
                    unit="s",
                    width=4,
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
                    "How long the trainer worked on a ballot or on the final model, over the day before.",
                    quantiles_of_a_day("consilium_training_duration_seconds", "task"),
                    unit="s",
                ),
                Panel(
                    "From asking to ballot",
                    "The same with the time a ballot waited for another training.",
                    quantiles_of_a_day("consilium_agent_vote_seconds", "task"),
                    unit="s",
                ),
                Panel(
                    "Patients and GPUs",
                    "Patients the trainer learns from (rows, where each is protected by itself) and GPUs it computes on, 0 on the CPU.",
                    (
                        Query(
                            f"max by (task) ({here('consilium_training_units')})",
                            "{{task}} patients",
                        ),
                        Query(
                            f"max by (task) ({here('consilium_training_gpus')})", "{{task}} GPUs"
                        ),
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
                    (Query(f"max by (task) ({here('consilium_agent_round')})", "{{task}}"),),
                    unit="none",
                ),
                Panel(
                    "Ballots",
                    "What became of ballots in the time shown: accepted, and where there were any, the code of the refusal.",
                    (
                        Query(
                            f"sum by (task, outcome) ({_INCREASE}) > 0 or sum by (task, outcome) ({_ACCEPTED})",
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
                            f"sum by (direction, kind) ({here('rate(consilium_agent_payload_bytes_total[$__rate_interval])')})",
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
                    (Query(f"max({here('process_resident_memory_bytes')})", "agent"),),
                    unit="bytes",
                ),
                Panel(
                    "CPU",
                    "CPU seconds per second.",
                    (
                        Query(
                            f"sum({here('rate(process_cpu_seconds_total[$__rate_interval])')})",
                            "agent",
                        ),
                    ),
                    unit="percentunit",
                ),
                Panel(
                    "Renewals",
                    "Attempts to renew the certificate in the last week.",
                    (
                        Query(
                            f"sum by (outcome) ({here('increase(consilium_agent_certificate_renewals_total[7d])', '7d')})",
                            "{{outcome}}",
                        ),
                    ),
                    kind="stat",
                ),
            ),
        ),
    ),
)

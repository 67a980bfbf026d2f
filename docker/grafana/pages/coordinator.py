"""The coordinator's inside, for whoever runs it."""

from __future__ import annotations

from panels import Dashboard, Panel, Query, Row, Variable

from pages.seldom import durations
from pages.words import DAY, UP, quantiles

_THESE = '{instance=~"$instance"}'
_ANSWERED = '{instance=~"$instance", method!~".*/Watch"}'

COORDINATOR = Dashboard(
    "coordinator",
    "Coordinator",
    "The coordinator's inside: calls, database, certificates, processes.",
    variables=(
        Variable(
            "instance",
            "Replica",
            'label_values(consilium_build_info{component="coordinator"}, instance)',
            several=True,
        ),
    ),
    rows=(
        Row(
            "Calls",
            (
                Panel(
                    "Calls",
                    "Calls answered per second, by method.",
                    (
                        Query(
                            f"sum by (method) (rate(consilium_grpc_handled_total{_THESE}[$__rate_interval]))",
                            "{{method}}",
                        ),
                    ),
                    unit="reqps",
                ),
                Panel(
                    "Calls that did not end well",
                    "By method and gRPC status. Cancelled watch streams are silos that reconnect.",
                    (
                        Query(
                            'sum by (method, status) (rate(consilium_grpc_handled_total{instance=~"$instance", status!="OK"}[$__rate_interval]))',
                            "{{method}} {{status}}",
                        ),
                    ),
                    unit="reqps",
                ),
                Panel(
                    "Latency",
                    "95th percentile from arrival to answer, by method; watch streams left out, which last.",
                    (
                        Query(
                            "histogram_quantile(0.95, sum by (le, method) "
                            f"(rate(consilium_grpc_handling_seconds_bucket{_ANSWERED}[$__rate_interval])))",
                            "{{method}}",
                        ),
                    ),
                    unit="s",
                    limits=(0.5, 2.5),
                ),
                Panel(
                    "Calls under way",
                    "By method; one watch stream per connected silo.",
                    (
                        Query(
                            f"sum by (method) (consilium_grpc_calls_in_progress{_THESE})",
                            "{{method}}",
                        ),
                    ),
                ),
                Panel(
                    "Refusals",
                    "Calls refused per second in five minutes, by the error catalogue's code (docs/errors.md).",
                    (
                        Query(
                            f"sum by (code) (rate(consilium_refusals_total{_THESE}[5m])) > 0",
                            "{{code}}",
                        ),
                    ),
                    unit="reqps",
                    limits=(0.5,),
                    sparse=True,
                ),
                Panel(
                    "Connections refused",
                    "Connections and calls that gRPC refuses by itself, per second in five minutes and by reason.",
                    (
                        Query(
                            f"sum by (reason) (rate(consilium_tls_handshakes_refused_total{_THESE}[5m])) > 0",
                            "{{reason}}",
                        ),
                    ),
                    unit="reqps",
                    limits=(0.2,),
                    sparse=True,
                ),
                Panel(
                    "Connections",
                    "Connections to the public ports, those in their handshake included.",
                    (Query(f"consilium_connections_open{_THESE}", "{{port}} {{instance}}"),),
                ),
                Panel(
                    "Connections closed at the door",
                    "Because there were too many or their handshake took too long, per second in five minutes.",
                    (
                        Query(
                            f"sum by (port, reason) (rate(consilium_connections_refused_total{_THESE}[5m])) > 0",
                            "{{port}} {{reason}}",
                        ),
                    ),
                    unit="reqps",
                    limits=(1.0,),
                    sparse=True,
                ),
            ),
        ),
        Row(
            "Database",
            (
                Panel(
                    "Database",
                    "Whether it answered the last scrape within three seconds.",
                    (Query(f"consilium_store_up{_THESE}", "{{instance}}"),),
                    kind="stat",
                    width=4,
                    names=UP,
                    limits=(1,),
                    falling=True,
                ),
                Panel(
                    "Operations",
                    "By what became of them. Refused is a caller's mistake; unavailable and failed are ours.",
                    (
                        Query(
                            f"sum by (outcome) (rate(consilium_store_operations_total{_THESE}[$__rate_interval]))",
                            "{{outcome}}",
                        ),
                    ),
                    unit="ops",
                    width=7,
                ),
                Panel(
                    "Slowest operations",
                    "The five operations with the highest 95th percentile.",
                    (
                        Query(
                            "topk(5, histogram_quantile(0.95, sum by (le, operation) "
                            f"(rate(consilium_store_operation_seconds_bucket{_THESE}[$__rate_interval]))))",
                            "{{operation}}",
                        ),
                    ),
                    unit="s",
                    width=7,
                    limits=(0.1, 1),
                ),
                Panel(
                    "Waiting",
                    "How long operations wait for those before them. SQLite has one at a time.",
                    quantiles("consilium_store_waiting_seconds", "", _THESE),
                    unit="s",
                    width=6,
                    limits=(0.1, 1),
                ),
                Panel(
                    "Repeated transactions",
                    "Undone in favour of another replica's and made again, per second.",
                    (
                        Query(
                            f"sum by (instance) (rate(consilium_store_repetitions_total{_THESE}[$__rate_interval]))",
                            "{{instance}}",
                        ),
                    ),
                    unit="ops",
                    width=12,
                    limits=(1,),
                ),
                Panel(
                    "Closing a round",
                    "From the decision to close a round to its published consensus, of the hour before.",
                    durations("consilium_round_close_seconds", "", _THESE),
                    unit="s",
                    width=12,
                    limits=(1, 10),
                    sparse=True,
                ),
            ),
        ),
        Row(
            "Certificates",
            (
                Panel(
                    "Server certificate left",
                    "Time until the certificate that each replica shows expires.",
                    (
                        Query(
                            f"consilium_server_certificate_expiry_timestamp_seconds{_THESE} - time()",
                            "{{instance}}",
                        ),
                    ),
                    kind="stat",
                    unit="s",
                    height=5,
                    limits=(2 * DAY, 5 * DAY),
                    falling=True,
                ),
                Panel(
                    "First silo's certificate left",
                    "Time until the first of the active silos' certificates expires; agents renew theirs at two thirds.",
                    (
                        Query(
                            "max(consilium_silos_certificate_expiry_timestamp_seconds) - time()",
                            "first",
                        ),
                    ),
                    kind="stat",
                    unit="s",
                    height=5,
                    limits=(DAY, 2 * DAY),
                    falling=True,
                ),
                Panel(
                    "Authority left",
                    "Time until the authority that signs now expires.",
                    (
                        Query(
                            f"min(consilium_authority_expiry_timestamp_seconds{_THESE}) - time()",
                            "left",
                        ),
                    ),
                    kind="stat",
                    unit="s",
                    height=5,
                    limits=(90 * DAY, 365 * DAY),
                    falling=True,
                ),
                Panel(
                    "Renewals",
                    "Certificates renewed in the last week, by whose they are.",
                    (
                        Query(
                            f"sum by (kind) (increase(consilium_certificate_renewals_total{_THESE}[7d]))",
                            "{{kind}}",
                        ),
                    ),
                    kind="stat",
                    height=5,
                ),
            ),
        ),
        Row(
            "Processes",
            (
                Panel(
                    "Software",
                    "Version of each replica.",
                    (
                        Query(
                            'max by (instance, version, python) (consilium_build_info{component="coordinator", instance=~"$instance"})',
                        ),
                        Query(
                            f"time() - max by (instance) (process_start_time_seconds{_THESE})",
                            "up for",
                        ),
                    ),
                    kind="table",
                    width=12,
                    columns=(("up for", "s", ()),),
                ),
                Panel(
                    "Memory",
                    "Resident memory.",
                    (Query(f"process_resident_memory_bytes{_THESE}", "{{instance}}"),),
                    unit="bytes",
                    width=12,
                ),
                Panel(
                    "CPU",
                    "CPU seconds per second.",
                    (
                        Query(
                            f"rate(process_cpu_seconds_total{_THESE}[$__rate_interval])",
                            "{{instance}}",
                        ),
                    ),
                    unit="percentunit",
                    width=12,
                ),
                Panel(
                    "Open files",
                    "Sockets and files, as a share of what the process may open.",
                    (Query(f"process_open_fds{_THESE} / process_max_fds{_THESE}", "{{instance}}"),),
                    unit="percentunit",
                    width=12,
                    limits=(0.7, 0.9),
                ),
            ),
        ),
    ),
)

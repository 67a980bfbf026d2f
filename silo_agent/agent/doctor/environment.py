"""Environment variables about proxies and gRPC logging that do not do what one may expect of them."""

from __future__ import annotations

from collections.abc import Mapping

from wire.net.proxy import PROXY_VARIABLE, Proxy
from wire.runtime.findings import Finding, ok, warning

ENVIRONMENT = "environment"

_PROXIES = {"http_proxy", "https_proxy", "all_proxy", "grpc_proxy"}
_EXCEPTIONS = {"no_proxy", "no_grpc_proxy"}
_QUIET = {"", "NONE", "ERROR"}


def environment_finding(
    environment: Mapping[str, str],
    proxy: Proxy | None,
    *,
    reached: bool,
    password_on_command_line: bool = False,
) -> Finding:
    """Names variables that are set and ignored; a warning if that may be why the coordinator is not reached."""
    lines: list[str] = []
    advice: list[str] = []
    unused = _named(environment, _PROXIES)
    if unused and proxy is None:
        lines.append(f"{unused} set and not used: Consilium goes through {PROXY_VARIABLE} only.")
        if not reached:
            advice.append(f"If this network needs the proxy, set {PROXY_VARIABLE} to its URL.")
    exceptions = _named(environment, _EXCEPTIONS)
    if exceptions and proxy is not None:
        lines.append(f"{exceptions} set and not used: everything goes through {proxy}.")
    if password_on_command_line:
        lines.append("The proxy's password stands on the command line, where `ps` shows it.")
        advice.append(f"Put it into {PROXY_VARIABLE}, or into a file: --proxy @FILE.")
    _add_logging(environment, lines, advice)
    if not lines:
        return ok(ENVIRONMENT, "Nothing in it is in the way.")
    if advice:
        return warning(ENVIRONMENT, " ".join(lines), " ".join(advice))
    return ok(ENVIRONMENT, " ".join(lines))


def _add_logging(environment: Mapping[str, str], lines: list[str], advice: list[str]) -> None:
    """What gRPC's own variables put into the log."""
    if environment.get("GRPC_TRACE"):
        lines.append("GRPC_TRACE is set: gRPC writes what it sends and receives to the log.")
        advice.append("Unset GRPC_TRACE; a proxy's password may be in what it writes.")
    if environment.get("GRPC_VERBOSITY", "").upper() not in _QUIET:
        lines.append("GRPC_VERBOSITY is set: gRPC adds its own lines to the log.")


def _named(environment: Mapping[str, str], names: set[str]) -> str:
    """`http_proxy and https_proxy are`, for those of `names` that are set, in either case."""
    found = sorted(name for name, value in environment.items() if value and name.lower() in names)
    return f"{' and '.join(found)} {'is' if len(found) == 1 else 'are'}" if found else ""

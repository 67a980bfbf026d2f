"""The coordinator's doctor: checks of its own folder and machine, each a finding. Reads only."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from coordinator.pki.credentials import ServerLeaf
from coordinator.pki.rotation import Authorities
from coordinator.settings import CoordinatorHome, CoordinatorSettings
from coordinator.store.engine import schema_revisions
from coordinator.store.sqlite_copy import sqlite_file
from wire.runtime.disk import FreeBytes, check_disk, free_bytes
from wire.runtime.findings import Check, Finding, Status, failed, ok, run_in_order, warning
from wire.runtime.permissions import access_finding
from wire.runtime.terminal import local_time

SETTINGS, DATABASE, AUTHORITY = "settings", "database", "authority"
SERVER, ADMIN, DISK, CLOCK, PORTS = "server", "admin's key", "disk", "clock", "ports"

_AUTHORITY_WARNING: Final = timedelta(days=90)
# The server's certificate renews itself at two thirds of its life.
_SERVER_WARNING: Final = 1 / 4


def examine(
    home: CoordinatorHome, now: datetime, *, serving: bool, free: FreeBytes = free_bytes
) -> Iterator[Finding]:
    """Every finding, in the order in which to put things right; `serving` if a coordinator of `home` runs here."""
    blocked = ""
    for finding in run_in_order([(SETTINGS, lambda: _settings(home))]):
        yield finding
        blocked = f"{SETTINGS} failed" if finding.status is Status.FAILED else ""
    checks: list[tuple[str, Check]] = [
        (DATABASE, lambda: _database(home)),
        (AUTHORITY, lambda: _authority(home, now)),
        (SERVER, lambda: _server(home, now)),
        ("file access", lambda: access_finding(home.places(_sqlite(home)))),
        (ADMIN, lambda: _admin(home)),
        (DISK, lambda: check_disk(DISK, [home.root], 0, free)),
        (CLOCK, lambda: _clock(home, now)),
        (PORTS, lambda: _ports(home.settings(), serving=serving)),
    ]
    for check in checks:
        yield from run_in_order([check], blocked=blocked)


def _settings(home: CoordinatorHome) -> Finding:
    settings = home.settings()
    return ok(SETTINGS, f"{home.settings_file} is sound; silos dial {settings.address}.")


def _sqlite(home: CoordinatorHome) -> Path | None:
    return sqlite_file(home.database_url(home.settings()))


def _database(home: CoordinatorHome) -> Finding:
    settings = home.settings()
    file = sqlite_file(home.database_url(settings))
    if file is not None and not file.exists():
        return failed(DATABASE, f"There is no {file}.", "Restore it from a backup.")
    present, newest = schema_revisions(home.database_url(settings))
    if present is None:
        return failed(
            DATABASE, "It answers and holds no consortium.", "Check `database` in coordinator.yaml."
        )
    if present != newest:
        return warning(
            DATABASE,
            f"It answers; its schema is {present}, ours is {newest}.",
            "`consilium coordinator serve` upgrades an older one; back up first (docs/upgrade.md).",
        )
    return ok(DATABASE, f"It answers and has the newest schema, {present}.")


def _authority(home: CoordinatorHome, now: datetime) -> Finding:
    signing = Authorities.load(home.authority).signing
    ends = signing.certificate.not_valid_after_utc
    replace = "Replace it: `consilium coordinator rotate-authority` (docs/certificates.md)."
    if now >= ends:
        return failed(AUTHORITY, f"It expired at {local_time(ends)}.", replace)
    if ends - now < _AUTHORITY_WARNING:
        return warning(AUTHORITY, f"It expires at {local_time(ends)}.", replace)
    return ok(AUTHORITY, f"{signing.fingerprint} is valid until {local_time(ends)}.")


def _server(home: CoordinatorHome, now: datetime) -> Finding:
    leaf = ServerLeaf.read(home.server).certificate
    ends = local_time(leaf.not_after)
    renewed = "A running coordinator renews it; see its log, or whoever renews it for you."
    if now >= leaf.not_after:
        return failed(SERVER, f"Its certificate expired at {ends}.", renewed)
    if leaf.not_after - now < (leaf.not_after - leaf.not_before) * _SERVER_WARNING:
        return warning(SERVER, f"Its certificate expires at {ends}.", renewed)
    return ok(SERVER, f"Its certificate is valid until {ends}.")


def _admin(home: CoordinatorHome) -> Finding:
    if home.admin.exists():
        return warning(
            ADMIN,
            f"The first admin's key lies beside the authority's, in {home.admin}.",
            "Move that folder to the admin's own machine.",
        )
    return ok(ADMIN, "No admin's key lies here.")


def _clock(home: CoordinatorHome, now: datetime) -> Finding:
    begins = ServerLeaf.read(home.server).certificate.not_before
    if now < begins:
        return failed(
            CLOCK,
            f"It says {local_time(now)}, before the server's certificate was made.",
            "Set this machine's clock (NTP).",
        )
    return ok(CLOCK, f"It says {local_time(now)}; hospitals' doctors compare theirs with it.")


def _ports(settings: CoordinatorSettings, *, serving: bool) -> Finding:
    ports = {
        settings.port: settings.listen,
        settings.enrolment_port: settings.listen,
        settings.metrics_port: settings.metrics_listen,
    }
    if serving:
        return ok(PORTS, f"The coordinator serves on {', '.join(map(str, ports))}.")
    for port, host in ports.items():
        why = _cannot_listen(host, port)
        if why:
            return failed(
                PORTS,
                f"Port {port} on {host} cannot be used: {why}.",
                "Stop what holds it, or choose another in coordinator.yaml.",
            )
    return ok(PORTS, f"{', '.join(map(str, ports))} are free; no coordinator serves here.")


def _cannot_listen(host: str, port: int) -> str:
    """Why a server could not listen there; empty if it could."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind(address)
    except OSError as error:
        return error.strerror or "the address is not known"
    return ""

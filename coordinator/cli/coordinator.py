"""`consilium coordinator`: make a consortium, serve it, replace its authority."""

from __future__ import annotations

import asyncio
import os
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from coordinator.cli.admit_admin import admit_admin
from coordinator.cli.backup import backup, restore
from coordinator.cli.connection import Home
from coordinator.cli.doctor import doctor
from coordinator.pki.credentials import ServerLeaf
from coordinator.pki.external_certificate import check_before_finish
from coordinator.pki.rotation import Authorities, begin, finish, prepare
from coordinator.server import serve, utc_now
from coordinator.settings import CoordinatorHome, CoordinatorSettings
from coordinator.setup.init import create_consortium, ignored_settings
from coordinator.store import Store
from coordinator.store.audit import Act
from coordinator.store.outstanding import HeldCertificate
from coordinator.store.sqlite_copy import sqlite_file
from wire.errors import ConfigurationError
from wire.identity.identity import signed_by
from wire.runtime.configuration import checked
from wire.runtime.logs import configure_logs
from wire.runtime.permissions import log_narrowed, narrow
from wire.runtime.secret_option import secret_text
from wire.runtime.shutdown import DRAIN_SECONDS, Drain, exit_on_sigterm
from wire.runtime.terminal import JsonFlag, local_time, print_json, print_warning, say

_UNLESS_GIVEN = {"consortium": "consilium", "hosts": ("localhost",)}

app = typer.Typer(no_args_is_help=True, help="Make a consortium and run its coordinator.")


@app.callback()
def database_password(
    file: Annotated[
        Path | None,
        typer.Option(
            "--database-password-file",
            envvar="CONSILIUM_DATABASE_PASSWORD_FILE",
            help="File with the database's password, where neither its URL nor PGPASSWORD has it.",
        ),
    ] = None,
) -> None:
    """Where libpq's own PGPASSFILE will not do: it wants a file that nobody else may read."""
    if file is None:
        return
    try:
        password = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{file} cannot be read: {error}.") from None
    if password:
        os.environ.setdefault("PGPASSWORD", password)


@app.command()
def init(
    home: Home,
    consortium: Annotated[
        str | None, typer.Option(help="Name of the consortium.", show_default="consilium")
    ] = None,
    host: Annotated[
        list[str] | None,
        typer.Option(
            help="Name or address silos reach this machine by; repeat for several.",
            show_default="localhost",
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(help="Port of the mutually authenticated services.", show_default="7443"),
    ] = None,
    enrolment_port: Annotated[
        int | None, typer.Option(help="Port where tokens are redeemed.", show_default="7444")
    ] = None,
    metrics_port: Annotated[
        int | None, typer.Option(help="Port of the metrics page.", show_default="9464")
    ] = None,
    metrics_per_silo: Annotated[
        bool | None,
        typer.Option(
            "--metrics-per-silo/--no-metrics-per-silo",
            help="Name silos on the metrics page.",
            show_default="no",
        ),
    ] = None,
    metrics_listen: Annotated[
        str | None,
        typer.Option(
            help="Address of the metrics page; coordinator.yaml can give it TLS and a password.",
            show_default="127.0.0.1",
        ),
    ] = None,
    listen: Annotated[
        str | None, typer.Option(help="Address to listen on.", show_default="0.0.0.0")  # noqa: S104
    ] = None,
    lease: Annotated[
        str | None,
        typer.Option(help="How long a silent silo counts as connected.", show_default="30s"),
    ] = None,
    admin: Annotated[str, typer.Option(help="Name of the first admin.")] = "admin",
    database: Annotated[
        str | None,
        typer.Option(
            help="postgresql+psycopg://…, or @FILE that holds it; empty: SQLite in the folder."
        ),
    ] = None,
    certificate_lifetime: Annotated[
        str | None,
        typer.Option(help="How long members' certificates are valid.", show_default="7d"),
    ] = None,
    server_certificate_lifetime: Annotated[
        str | None,
        typer.Option(help="How long the server's own certificate is valid.", show_default="30d"),
    ] = None,
    if_missing: Annotated[
        bool,
        typer.Option("--if-missing", help="Keep a consortium that is there; finish one half made."),
    ] = False,
) -> None:
    """Make the consortium's authority, the server's certificate and the first admin's identity."""
    folder = CoordinatorHome(home)
    options = {
        "consortium": consortium,
        "hosts": tuple(host) if host else None,
        "listen": listen,
        "port": port,
        "enrolment_port": enrolment_port,
        "metrics_listen": metrics_listen,
        "metrics_port": metrics_port,
        "metrics_per_silo": metrics_per_silo,
        "lease": lease,
        "database": database and secret_text(database),
        "certificate_lifetime": certificate_lifetime,
        "server_certificate_lifetime": server_certificate_lifetime,
    }
    given = {key: value for key, value in options.items() if value is not None}
    settings = checked(_UNLESS_GIVEN | given, CoordinatorSettings, "options")
    authority = create_consortium(folder, settings, admin, utc_now(), if_missing=if_missing)
    if authority is None:
        kept = folder.settings()
        say("Consortium [bold]{}[/] is in {} already; it is kept as it is.", kept.consortium, home)
        for sentence in ignored_settings(given, settings, kept):
            print_warning(sentence)
        return
    say("Consortium [bold]{}[/] made in {}.", settings.consortium, home)
    say("Authority  {}", authority.fingerprint)
    say("Next: `consilium coordinator serve`, then `consilium silo register NAME`.")


@app.command(name="serve")
def serve_command(
    home: Home,
    drain: Drain = DRAIN_SECONDS,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Serve until stopped; safe to kill at any moment."""
    exit_on_sigterm()
    folder = _existing(home)
    configure_logs(log_level)
    log_narrowed(narrow(folder.places(sqlite_file(folder.database_url(folder.settings())))))
    asyncio.run(serve(folder, drain))


@app.command()
def rotate_authority(
    home: Home,
    end: Annotated[
        bool, typer.Option("--finish", help="End the trust in the authority before.")
    ] = False,
    force: Annotated[bool, typer.Option(help="Finish even if that locks members out.")] = False,
) -> None:
    """Replace the consortium's authority while everyone stays connected: begin, later --finish.

    Run it on the coordinator's host; a running coordinator notices within seconds.
    """
    folder = _existing(home)
    store = Store(folder.database_url(folder.settings()))
    try:
        if end:
            _finish(folder, store, force=force)
            return
        # Recorded before it is done: a crash in between leaves a record too many, never one too few.
        fingerprint = prepare(folder.authority, utc_now()).fingerprint
        store.outstanding.authority_changed(Act.AUTHORITY_ROTATION_BEGUN, fingerprint, utc_now())
        begin(folder.authority)
    finally:
        store.close()
    say("Authority  {} signs from now on.", fingerprint)
    say(
        "Silos renew by themselves within a heartbeat; admins run `consilium admin renew`. "
        "`consilium coordinator status` says who is missing; then `rotate-authority --finish`."
    )
    if folder.settings().server_certificate_folder:
        say(
            "The server's certificate is renewed by another program: before --finish, have it issued "
            "by the new authority (docs/certificates.md)."
        )


def _finish(folder: CoordinatorHome, store: Store, *, force: bool) -> None:
    authorities, now = Authorities.load(folder.authority), utc_now()
    if not force:
        check_before_finish(folder, folder.settings(), authorities, now)
    held = _signed_by_previous(authorities, store, now)
    missing = _still_needing_previous(held, store, now) if authorities.previous else []
    if missing and not force:
        raise ConfigurationError(
            f"The old authority is still needed by {', '.join(missing)}.",
            "Silos renew when they are connected, admins with `consilium admin renew`, tokens end by "
            "themselves. --force locks out whoever is left.",
        )
    if authorities.previous is not None:
        old = authorities.previous.fingerprint
        store.outstanding.authority_changed(Act.AUTHORITY_ROTATION_FINISHED, old, now, held)
    authorities = finish(folder.authority)
    say("Authority  {} is the only one trusted now.", authorities.signing.fingerprint)
    if missing:
        say("Locked out: {}. They join again with a new token.", ", ".join(missing))


def _signed_by_previous(
    authorities: Authorities, store: Store, now: datetime
) -> list[HeldCertificate]:
    """Certificates of the authority that is being replaced and that someone may still present."""
    if authorities.previous is None:
        return []
    old = authorities.previous.certificate_pem
    return [one for one in store.outstanding.certificates(now) if signed_by(one.pem.encode(), old)]


def _still_needing_previous(held: list[HeldCertificate], store: Store, now: datetime) -> list[str]:
    """Who would be locked out if the rotation were finished now."""
    holders = sorted({f"{one.role} {one.name} ({one.status})" for one in held})
    return holders + [
        f"the join token of {invited.role} {invited.name} (until {local_time(invited.expires_at)})"
        for invited in store.outstanding.invitations(now)
    ]


@app.command()
def status(home: Home, as_json: JsonFlag = False) -> None:
    """Show the authority, the server's certificate and a rotation under way."""
    rows = _status_rows(_existing(home))
    if as_json:
        print_json(
            {
                key: value.isoformat() if isinstance(value, datetime) else value
                for key, value in rows.items()
            }
        )
        return
    for key, value in rows.items():
        shown = local_time(value) if isinstance(value, datetime) else value
        text = ", ".join(shown) if isinstance(shown, list) else shown
        say("{} {}", f"{key.replace('_', ' '):<30}", text or "–")


def _status_rows(folder: CoordinatorHome) -> dict[str, str | datetime | list[str] | None]:
    authorities, now = Authorities.load(folder.authority), utc_now()
    leaf = ServerLeaf.read(folder.server).certificate
    previous = authorities.previous
    missing: list[str] = []
    if previous is not None:
        store = Store(folder.database_url(folder.settings()))
        missing = _still_needing_previous(_signed_by_previous(authorities, store, now), store, now)
        store.close()
    return {
        "consortium": authorities.signing.consortium,
        "authority": authorities.signing.fingerprint,
        "authority_expires_at": authorities.signing.certificate.not_valid_after_utc,
        "rotation": "under way" if previous else "none",
        "previous_authority": previous.fingerprint if previous else None,
        "missing": missing,
        "server_certificate": leaf.fingerprint,
        "server_certificate_issuer": leaf.issuer,
        "server_certificate_expires_at": leaf.not_after,
    }


app.command()(backup)
app.command()(restore)
app.command()(admit_admin)
app.command()(doctor)


def _existing(home: Path) -> CoordinatorHome:
    folder = CoordinatorHome(home)
    if not folder.settings_file.exists():
        raise ConfigurationError(
            f"There is no coordinator in {home}.", "Make one with `consilium coordinator init`."
        )
    return folder

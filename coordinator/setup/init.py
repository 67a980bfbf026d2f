"""Creates a consortium: its authority, the server's certificate, the first admin, coordinator.yaml.

coordinator.yaml is written last: a folder without it is what an interrupted `init` left.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta

import yaml

from coordinator.pki.authority import Authority
from coordinator.pki.certificate_keeper import ensure_leaf
from coordinator.pki.key_request import certificate_key_hash
from coordinator.pki.rotation import Authorities
from coordinator.settings import CoordinatorHome, CoordinatorSettings
from coordinator.store import Store
from coordinator.store.records import IssuedCertificate
from wire.errors import ConfigurationError
from wire.identity.files import IdentityFiles
from wire.identity.identity import Role
from wire.runtime.files import locked, write_atomically


def create_consortium(
    folder: CoordinatorHome,
    settings: CoordinatorSettings,
    admin: str,
    now: datetime,
    *,
    if_missing: bool = False,
) -> Authority | None:
    """Creates the consortium and returns its authority.

    With `if_missing` an existing one is kept (None), and an interrupted creation is finished. Replicas that share
    the folder may start together.
    """
    with locked(folder.root):
        if if_missing and folder.settings_file.exists():
            return None
        authority = _create_all_but_settings(folder, settings, admin, now, resume=if_missing)
        text = yaml.safe_dump(settings.model_dump(mode="json"), sort_keys=False)
        write_atomically(folder.settings_file, text.encode())
    return authority


def _create_all_but_settings(
    folder: CoordinatorHome,
    settings: CoordinatorSettings,
    admin: str,
    now: datetime,
    *,
    resume: bool,
) -> Authority:
    """Authority, certificates and first admin; `resume` goes on where an `init` was interrupted."""
    # Opened before anything is written: an unreachable database leaves nothing behind.
    store = Store(folder.database_url(settings))
    try:
        known = store.members.admins()
        identity = admin_of(folder) if resume else None
        ours = identity.certificate.fingerprint if identity else ""
        if known and ours not in (one.fingerprint for one in store.outstanding.certificates(now)):
            raise ConfigurationError(
                "The database already holds a consortium.",
                "Give this one an empty database. A further replica needs no `init` but the same "
                "folder: see docs/replicas.md.",
            )
        authority = _authority_of(folder) if resume else None
        if authority is None:
            authority = Authority.create(folder.authority, settings.consortium, now)
        ensure_leaf(folder, settings, Authorities(authority), now)
        if identity is None:
            identity = new_admin(folder, settings, Authorities(authority), admin, now)
            identity.store()
        if not known:
            store.members.adopt(
                Role.ADMIN,
                identity.name,
                certificate_key_hash(identity.certificate_pem),
                issued_to(identity),
                now,
            )
        return authority
    finally:
        store.close()


def ignored_settings(
    given: Collection[str], wanted: CoordinatorSettings, kept: CoordinatorSettings
) -> list[str]:
    """A sentence for each setting `given` to an `init` that differs in the existing consortium, which is kept."""
    return [
        _ignored_setting(key, getattr(wanted, key), getattr(kept, key))
        for key in given
        if getattr(wanted, key) != getattr(kept, key)
    ]


def _ignored_setting(key: str, wanted: object, kept: object) -> str:
    option = "--" + key.replace("_", "-").replace("hosts", "host")
    if key == "database":
        # Its URL may hold a password.
        sentence = f"{option} was not taken over: coordinator.yaml names another"
    else:
        sentence = f"{option} {_shown(wanted)} was not taken over: {key} is {_shown(kept)}"
    if key == "consortium":
        return f"{sentence}, and a consortium keeps its name."
    return f"{sentence}; to change it, edit coordinator.yaml and restart."


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(value)
    return f"{value:g}s" if isinstance(value, float) else str(value)


def open_existing_store(folder: CoordinatorHome, settings: CoordinatorSettings) -> Store:
    """The consortium's database; ConfigurationError if no consortium is in it."""
    store = Store(folder.database_url(settings))
    if not store.members.admins():
        store.close()
        raise ConfigurationError(
            "The database that coordinator.yaml names holds no consortium.",
            "Check `database` there; if the database was lost, restore it from a backup.",
        )
    return store


def new_admin(
    folder: CoordinatorHome,
    settings: CoordinatorSettings,
    authorities: Authorities,
    name: str,
    now: datetime,
) -> IdentityFiles:
    """A new identity of admin `name` for the coordinator's own folder; not stored in folder or database yet."""
    lifetime = timedelta(seconds=settings.certificate_lifetime)
    issued = authorities.signing.issue_admin(name, lifetime, now)
    return IdentityFiles(
        folder=folder.admin,
        key_pem=issued.key_pem,
        certificate_pem=issued.certificate_pem,
        authorities_pem=authorities.bundle_pem,
        coordinator_address=settings.address,
        consortium=settings.consortium,
        name=name,
    )


def issued_to(identity: IdentityFiles) -> IssuedCertificate:
    """An identity's certificate as the database keeps it."""
    certificate = identity.certificate
    pem = identity.certificate_pem.decode()
    return IssuedCertificate(pem, certificate.fingerprint, certificate.not_after)


def admin_of(folder: CoordinatorHome) -> IdentityFiles | None:
    """The admin's identity in the folder, if there is one that can be read."""
    try:
        return IdentityFiles.load(folder.admin, Role.ADMIN)
    except ConfigurationError:
        return None


def _authority_of(folder: CoordinatorHome) -> Authority | None:
    """The authority an interrupted `init` created, if any; `Authority.create` refuses one that is damaged."""
    try:
        return Authority.load(folder.authority)
    except ConfigurationError:
        return None

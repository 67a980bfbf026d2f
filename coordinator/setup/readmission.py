"""Admits an admin whom no other can invite: through the coordinator's own folder, never over the wire.

Whoever can read the authority's key could sign any certificate; this makes one that is in the database and in the
audit chain.
"""

from __future__ import annotations

from datetime import datetime

from coordinator.pki.key_request import certificate_key_hash
from coordinator.pki.rotation import Authorities
from coordinator.settings import CoordinatorHome
from coordinator.setup.init import admin_of, issued_to, new_admin
from coordinator.store import Store
from coordinator.store.actors import LocalActor
from coordinator.store.records import MemberStatus
from wire.identity.files import IdentityFiles
from wire.runtime.files import locked


def default_admin(folder: CoordinatorHome, store: Store) -> str:
    """The admin whose identity lies in the folder, else the one registered first."""
    held = admin_of(folder)
    if held is not None:
        return held.name
    return min(store.members.admins(), key=lambda admin: admin.registered_at).name


def readmission_warnings(
    folder: CoordinatorHome, store: Store, name: str, now: datetime
) -> list[str]:
    """What a person should know before `name` is admitted; empty if it only lacks a good certificate."""
    found = {admin.name: admin for admin in store.members.admins()}.get(name)
    held = admin_of(folder)
    warnings = []
    if found is None:
        warnings.append(f"There is no admin {name} yet.")
    elif found.status is MemberStatus.REVOKED:
        warnings.append(f"Admin {name} has been revoked.")
    elif found.certificate_expires_at is not None and found.certificate_expires_at > now:
        warnings.append(f"Admin {name} has a certificate that is still good; it will be withdrawn.")
    if held is not None and held.name != name:
        warnings.append(f"{folder.admin} holds the identity of {held.name}; it will be replaced.")
    return warnings


def admit_admin(
    folder: CoordinatorHome, store: Store, name: str, now: datetime, by: LocalActor
) -> IdentityFiles:
    """Makes `name` an admin with a new identity in the folder; its earlier certificates are void.

    May run beside a coordinator that serves. If it is interrupted, run it again.
    """
    with locked(folder.admin):
        authorities = Authorities.load(folder.authority)
        identity = new_admin(folder, folder.settings(), authorities, name, now)
        key_hash = certificate_key_hash(identity.certificate_pem)
        store.members.readmit_admin(name, key_hash, issued_to(identity), now, by)
        identity.store()
    return identity

"""The way back for an admin whom no other can invite: through the coordinator's own folder, never over the wire.

Whoever can read the authority's key could make any certificate; this makes it one that the database knows and the
audit chain tells of.
"""

from __future__ import annotations

from datetime import datetime

from coordinator.authority import certificate_key_hash
from coordinator.founding import admin_of, issued_to, new_admin
from coordinator.rotation import Authorities
from coordinator.settings import CoordinatorHome
from coordinator.store import Store
from coordinator.store.records import MemberStatus
from wire.files import locked
from wire.identity import IdentityFiles


def usual_admin(folder: CoordinatorHome, store: Store) -> str:
    """The admin whose identity lies in the folder, else the one registered first."""
    held = admin_of(folder)
    if held is not None:
        return held.name
    return min(store.members.admins(), key=lambda admin: admin.registered_at).name


def misgivings(folder: CoordinatorHome, store: Store, name: str, now: datetime) -> list[str]:
    """What a person should know before `name` is admitted; empty if it only lacks a good certificate."""
    found = {admin.name: admin for admin in store.members.admins()}.get(name)
    held = admin_of(folder)
    told = []
    if found is None:
        told.append(f"There is no admin {name} yet.")
    elif found.status is MemberStatus.REVOKED:
        told.append(f"Admin {name} has been revoked.")
    elif found.certificate_expires_at is not None and found.certificate_expires_at > now:
        told.append(f"Admin {name} has a certificate that is still good; it will be withdrawn.")
    if held is not None and held.name != name:
        told.append(f"{folder.admin} holds the identity of {held.name}; it will be replaced.")
    return told


def admit_admin(
    folder: CoordinatorHome, store: Store, name: str, now: datetime, by: str
) -> IdentityFiles:
    """Makes `name` an admin with a new identity in the folder; what it held before is void.

    May run beside a coordinator that serves. Cut off in between, it is simply run again.
    """
    with locked(folder.admin):
        authorities = Authorities.load(folder.authority)
        identity = new_admin(folder, folder.settings(), authorities, name, now)
        key_hash = certificate_key_hash(identity.certificate_pem)
        store.members.readmit_admin(name, key_hash, issued_to(identity), now, by)
        identity.store()
    return identity

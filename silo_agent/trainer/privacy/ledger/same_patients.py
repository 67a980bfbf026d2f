"""A data set may not begin a new budget for patients who were charged under another name.

What a person wrote under `privacy.same_patients_as` goes on the books: both data sets are charged together from then on,
to one lifetime budget. Whether a session may open thus depends on the data, one patient suffices; the refusal names
neither data set nor number, and comes only after someone at the hospital changed the name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from silo_agent.trainer.privacy.ledger.ledger import Ledger
from silo_agent.trainer.privacy.ledger.patients import Marks, PatientRecord
from silo_agent.trainer.privacy.settings import PrivacySettings
from wire.errors import PATIENT_RECORD_LOST, PATIENTS_CHARGED_ELSEWHERE, Refusal
from wire.privacy.declaration import Unit


@dataclass(frozen=True)
class Comparison:
    """The patients of a data set against those of all others that were charged; for the private side's eyes."""

    shared: Mapping[str, int]
    """Data sets that have some of them and no common budget, and how many."""
    lost: tuple[str, ...]
    """Data sets whose patients were recorded and are not on record any more."""
    unrecorded: tuple[str, ...]
    """Data sets that an earlier version charged, which kept no record."""


def compare(
    settings: PrivacySettings, marks: Marks, ledger: Ledger, record: PatientRecord
) -> Comparison:
    """Looks, and changes nothing. Data sets that silo.yaml declares to have the same patients are left out."""
    apart = _apart(settings, ledger)
    sizes, shared = record.sizes(), record.shared(settings.dataset, marks)
    return Comparison(
        shared={name: count for name, count in shared.items() if name in apart},
        lost=tuple(name for name, kept in apart.items() if sizes.get(name, 0) < kept),
        unrecorded=tuple(name for name, kept in apart.items() if not kept and name not in sizes),
    )


def _apart(settings: PrivacySettings, ledger: Ledger) -> dict[str, int]:
    """Data sets with a budget of their own, with how many hashes of their patients were on record."""
    declared = {settings.dataset, *settings.same_patients_as}
    return {
        name: kept
        for name, kept in ledger.charged().items()
        if not any(ledger.together(name, other) for other in declared)
    }


def admit(
    settings: PrivacySettings, marks: Marks, unit: Unit, ledger: Ledger, record: PatientRecord
) -> Comparison:
    """Keeps these patients for the data set; from here on its releases are charged to them.

    PATIENTS_CHARGED_ELSEWHERE if another data set has some of them and silo.yaml does not say why;
    PATIENT_RECORD_LOST if that cannot be told any more.
    """
    found = compare(settings, marks, ledger, record)
    if found.shared:
        raise Refusal(PATIENTS_CHARGED_ELSEWHERE)
    if found.lost:
        raise Refusal(PATIENT_RECORD_LOST)
    for other, reason in settings.same_patients_as.items():
        if other in ledger.charged():
            ledger.declare_same_patients(settings.dataset, other, reason, unit, settings.delta)
    ledger.note_patients(settings.dataset, record.keep(settings.dataset, marks))
    return found

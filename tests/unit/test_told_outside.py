"""What the network side is told when the trainer refuses."""

from __future__ import annotations

import pytest

from silo_agent.trainer.told_outside import PASSES, told_outside
from wire.errors import (
    BALLOT_LABEL,
    CATALOGUE,
    DATA_MISMATCH,
    PRIVATE_SIDE_UNREADY,
    TRAINING_FAILED,
    ConfigurationError,
    Refusal,
)

SECRET = "smith, ward 7, 294 rows"
SILENT = (DATA_MISMATCH, PRIVATE_SIDE_UNREADY, TRAINING_FAILED)


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (ConfigurationError(SECRET, SECRET), PRIVATE_SIDE_UNREADY),
        (ValueError(SECRET), TRAINING_FAILED),
        (type(SECRET, (Exception,), {})(), TRAINING_FAILED),
        (KeyError(SECRET), TRAINING_FAILED),
    ],
)
def test_of_anything_but_a_listed_refusal_a_code_is_left(error: Exception, fault: object) -> None:
    told = told_outside(error, 3)
    assert told.is_a(fault)  # type: ignore[arg-type]
    assert "smith" not in f"{told.sentence} {told.hint} {told.metadata()}"


def test_a_refusal_that_is_not_on_the_list_is_withheld() -> None:
    assert BALLOT_LABEL not in PASSES
    refusal = Refusal(BALLOT_LABEL, classes=SECRET)
    assert "smith" in refusal.sentence
    assert told_outside(refusal, 3).is_a(PRIVATE_SIDE_UNREADY)


def test_what_private_data_cause_has_no_room_for_a_reason() -> None:
    for fault in SILENT:
        assert "{why}" not in fault.sentence + fault.hint
        assert "{kind}" not in fault.sentence + fault.hint


def test_a_listed_refusal_passes_as_it_is() -> None:
    refusal = Refusal(DATA_MISMATCH, task="trial")
    assert told_outside(refusal, 3) is refusal
    assert all(CATALOGUE[fault.code] is fault for fault in PASSES)

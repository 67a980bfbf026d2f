"""What a silo declares never says less than it spends, and a task's demand is met exactly at its limits."""

from __future__ import annotations

import math

import pytest
from pydantic import ValidationError

from wire.consilium.v1 import privacy_pb2
from wire.privacy.declaration import (
    BILLION,
    MICRO,
    PICO,
    Declaration,
    MechanismName,
    PrivacyDemand,
    Unit,
)

FULL = Declaration(
    mechanism=MechanismName.XOR,
    epsilon=1.25,
    delta=3e-6,
    unit=Unit.PATIENT,
    estimate=True,
    one_if_voted=0.75,
    one_if_not=0.125,
    units_log2=11,
)


def travelled(declared: Declaration) -> Declaration:
    return Declaration.from_proto(declared.to_proto())


# -- declarations -----------------------------------------------------------------------------------------


def test_the_wire_carries_millionths_of_epsilon_trillionths_of_delta_and_milliardths_of_chances() -> (
    None
):
    assert (MICRO, BILLION, PICO) == (10**6, 10**9, 10**12)
    message = FULL.to_proto()
    assert message.epsilon_micros == 1_250_000
    assert message.delta_picos == 3_000_000
    assert message.one_if_voted_ppb == 750_000_000
    assert message.one_if_not_ppb == 125_000_000
    assert message.units_log2 == 11


def test_a_declaration_comes_back_as_it_went() -> None:
    assert travelled(FULL) == FULL
    assert travelled(Declaration()) == Declaration()


@pytest.mark.parametrize("mechanism", MechanismName)
@pytest.mark.parametrize("unit", Unit)
def test_every_mechanism_and_unit_has_its_value_on_the_wire(
    mechanism: MechanismName, unit: Unit
) -> None:
    declared = Declaration(mechanism=mechanism, unit=unit)
    assert (travelled(declared).mechanism, travelled(declared).unit) == (mechanism, unit)


@pytest.mark.parametrize(
    ("epsilon", "micros"),
    [(1e-9, 1), (0.1234561, 123_457), (0.3, 300_000), (2.0000001, 2_000_001)],
)
def test_epsilon_is_rounded_up_but_not_for_a_float_error(epsilon: float, micros: int) -> None:
    assert Declaration(epsilon=epsilon).to_proto().epsilon_micros == micros


@pytest.mark.parametrize(
    ("delta", "picos"), [(1e-14, 1), (1.5e-12, 2), (3e-12, 3), (3.004e-12, 4), (1e-5, 10**7)]
)
def test_delta_is_rounded_up_but_not_for_a_float_error(delta: float, picos: int) -> None:
    assert Declaration(epsilon=1.0, delta=delta).to_proto().delta_picos == picos


def test_an_epsilon_too_large_to_bound_anything_is_declared_as_none() -> None:
    most = 2**53 / MICRO
    assert Declaration(epsilon=most).to_proto().epsilon_micros == 2**53
    assert Declaration(epsilon=2 * most).to_proto().epsilon_micros == 0
    assert Declaration().to_proto().epsilon_micros == 0
    said = privacy_pb2.PrivacyDeclaration
    unit, mechanism = privacy_pb2.UNIT_ROW, privacy_pb2.MECHANISM_XOR
    for micros, epsilon in [(0, math.inf), (1, 1e-6), (2**53, most), (2**53 + 1, math.inf)]:
        read = Declaration.from_proto(said(epsilon_micros=micros, unit=unit, mechanism=mechanism))
        assert read.epsilon == epsilon


def test_a_size_is_absent_unless_it_is_said_and_zero_is_a_size() -> None:
    assert not Declaration().to_proto().HasField("units_log2")
    assert travelled(Declaration(units_log2=0)).units_log2 == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"epsilon": 0.0},
        {"delta": -0.1},
        {"delta": 1.0},
        {"one_if_voted": 1.1},
        {"one_if_voted": -0.1},
        {"one_if_not": 1.1},
        {"one_if_not": -0.1},
        {"units_log2": -1},
        {"units_log2": 63},
    ],
    ids=str,
)
def test_what_cannot_be_is_not_read(wrong: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        Declaration(**wrong)


def test_neither_a_declaration_nor_a_demand_can_be_changed() -> None:
    declared, demand = Declaration(epsilon=2.0), PrivacyDemand(max_epsilon=1.0)
    with pytest.raises(ValidationError):
        declared.epsilon = 1.0  # type: ignore[misc]
    with pytest.raises(ValidationError):
        demand.max_epsilon = 2.0  # type: ignore[misc]


def test_the_ends_of_every_range_are_within_it() -> None:
    Declaration(one_if_voted=0.0, one_if_not=1.0, units_log2=62)
    Declaration(one_if_voted=1.0, one_if_not=0.0, units_log2=0, delta=0.0)


def test_a_mechanism_nobody_knows_is_refused_by_its_number() -> None:
    message = FULL.to_proto()
    message.mechanism = 77  # type: ignore[assignment]
    with pytest.raises(ValidationError, match="unknown \\(77\\)"):
        Declaration.from_proto(message)


# -- demands ----------------------------------------------------------------------------------------------


def test_a_demand_comes_back_as_it_went() -> None:
    demands = [
        PrivacyDemand(),
        PrivacyDemand(
            mechanisms=(MechanismName.XOR, MechanismName.TEACHER_VOTES),
            max_epsilon=1.5,
            max_delta=2e-6,
            accept_estimates=True,
            party_gamma=0.05,
        ),
    ]
    for demand in demands:
        assert PrivacyDemand.from_proto(demand.to_proto()) == demand
    message = demands[1].to_proto()
    assert message.max_epsilon_micros == 1_500_000
    assert message.max_delta_picos == 2_000_000
    assert message.party_gamma_micros == 50_000


@pytest.mark.parametrize(
    ("name", "least", "most"), [("max_epsilon", 1e-6, 1e6), ("party_gamma", 1e-6, 1000.0)]
)
def test_a_demand_reaches_from_a_millionth_to_its_largest(
    name: str, least: float, most: float
) -> None:
    for value in (least, most):
        demand = PrivacyDemand.model_validate({name: value})
        assert PrivacyDemand.from_proto(demand.to_proto()) == demand
    for value in (least * 0.9, most + 1e-6, math.inf, math.nan):
        with pytest.raises(ValidationError):
            PrivacyDemand.model_validate({name: value})


@pytest.mark.parametrize("delta", [0.0, 1.0])
def test_a_delta_of_nothing_or_everything_cannot_be_demanded(delta: float) -> None:
    with pytest.raises(ValidationError):
        PrivacyDemand(max_delta=delta)


def test_a_demand_is_met_exactly_at_its_limits() -> None:
    demand = PrivacyDemand(max_epsilon=1.25, max_delta=3e-6)
    kept = FULL.model_copy(update={"estimate": False})
    assert demand.unmet_by(kept) == ()
    assert demand.unmet_by(kept.model_copy(update={"epsilon": 1.250001})) == (
        "it allows ε ≤ 1.25, not 1.25",
    )
    assert demand.unmet_by(kept.model_copy(update={"delta": 4e-6})) == (
        "it allows δ ≤ 3e-06, not 4e-06",
    )
    assert demand.unmet_by(kept.model_copy(update={"epsilon": math.inf})) == (
        "it allows ε ≤ 1.25 and the ballot has no noise",
    )


def test_a_demand_without_an_epsilon_asks_for_no_delta_and_takes_estimates() -> None:
    assert PrivacyDemand().unmet_by(FULL) == ()
    assert PrivacyDemand().unmet_by(Declaration()) == ()


def test_an_estimate_counts_only_where_it_is_accepted() -> None:
    limits = {"max_epsilon": 2.0, "max_delta": 1e-5}
    assert PrivacyDemand(**limits, accept_estimates=True).unmet_by(FULL) == ()
    assert PrivacyDemand(**limits).unmet_by(FULL) == ("it accepts no ε that is only an estimate",)


def test_a_mechanism_that_is_not_accepted_is_named_beside_those_that_are() -> None:
    demand = PrivacyDemand(mechanisms=(MechanismName.TEACHER_VOTES, MechanismName.PRIVATE_LABELLER))
    assert demand.unmet_by(FULL) == ("it accepts teacher_votes or private_labeller, not xor",)
    assert demand.unmet_by(Declaration(mechanism=MechanismName.TEACHER_VOTES)) == ()

"""What CONTRIBUTING's recipes must not forget: whoever adds one of a kind is told here what is missing."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import get_args

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import create_engine

from coordinator.api.admin import AdminServicer
from coordinator.api.enrolment import EnrolmentServicer
from coordinator.api.identity import IdentityServicer
from coordinator.api.registry import RegistryServicer
from coordinator.api.rounds import RoundsServicer
from coordinator.store import Store
from coordinator.store.schema import metadata
from silo_agent.trainer.methods.protocol import Method as MethodProtocol
from silo_agent.trainer.methods.registry import method_class
from silo_agent.trainer.models.catalogue import LEARNERS
from silo_agent.trainer.privacy.settings import MechanismSettings
from silo_agent.trainer.server import TrainerServicer
from wire.consilium.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    enrolment_pb2,
    enrolment_pb2_grpc,
    identity_pb2,
    identity_pb2_grpc,
    registry_pb2,
    registry_pb2_grpc,
    rounds_pb2,
    rounds_pb2_grpc,
    trainer_pb2,
    trainer_pb2_grpc,
)
from wire.privacy.declaration import MechanismName
from wire.task.consensus_policy import RuleName
from wire.task.methods import Method

pytestmark = pytest.mark.slow

DOCS = Path(__file__).parents[2] / "docs"
SERVICES = [
    (admin_pb2, admin_pb2_grpc, AdminServicer),
    (enrolment_pb2, enrolment_pb2_grpc, EnrolmentServicer),
    (identity_pb2, identity_pb2_grpc, IdentityServicer),
    (registry_pb2, registry_pb2_grpc, RegistryServicer),
    (rounds_pb2, rounds_pb2_grpc, RoundsServicer),
    (trainer_pb2, trainer_pb2_grpc, TrainerServicer),
]


@pytest.mark.parametrize("rule", RuleName)
def test_a_rule_has_its_page_and_its_line_in_the_table(rule: RuleName) -> None:
    page = f"{rule.replace('_', '-')}.md"
    assert (DOCS / "consensus" / page).exists()
    assert f"({page})" in (DOCS / "consensus" / "README.md").read_text()


@pytest.mark.parametrize("name", LEARNERS)
def test_a_learner_has_its_line_on_the_page_of_learners(name: str) -> None:
    assert f"\n| `{name}` |" in (DOCS / "learners.md").read_text()


@pytest.mark.parametrize("name", MechanismName)
def test_a_mechanism_has_settings_and_its_line_on_the_privacy_page(name: MechanismName) -> None:
    union = get_args(get_args(MechanismSettings)[0])
    assert [kind for kind in union if kind.model_fields["name"].default is name]
    assert f"\n| `{name}` |" in (DOCS / "privacy.md").read_text()


@pytest.mark.parametrize("name", Method)
def test_a_method_has_its_object_and_its_page(name: Method) -> None:
    made = method_class(name)
    members = {
        member
        for member, value in vars(MethodProtocol).items()
        if inspect.isfunction(value) or isinstance(value, staticmethod)
    }
    assert not {member for member in members if not hasattr(made, member)}
    assert "label_public" in members
    assert (DOCS / f"{name}.md").exists()


@pytest.mark.parametrize(
    ("messages", "stubs", "servicer"), SERVICES, ids=[kind.__name__ for *_, kind in SERVICES]
)
def test_every_call_of_the_contract_is_answered(messages, stubs, servicer) -> None:  # type: ignore[no-untyped-def]
    (service,) = messages.DESCRIPTOR.services_by_name.values()
    generated = getattr(stubs, f"{service.name}Servicer")
    unanswered = [
        call.name
        for call in service.methods
        if getattr(servicer, call.name) is getattr(generated, call.name)
    ]
    assert unanswered == []


def test_migrations_make_the_schema_that_the_code_declares(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'coordinator.db'}"
    Store(url).close()
    with create_engine(url).connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []

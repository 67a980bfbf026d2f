"""What a hospital's own page says of its trainer's work, and that the coordinator's page says nothing of it."""

from __future__ import annotations

import asyncio
import urllib.request
from collections.abc import Iterator
from contextlib import suppress

import pytest
from federation import PRIVATE_ROWS, Federation, federation
from prometheus_client.parser import text_string_to_metric_families
from service import Service, eventually, free_port

from silo_agent.agent.trainer_client import TrainerClient
from wire.consilium.v1 import admin_pb2, trainer_pb2

ROUNDS = 2


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """Two hospitals, one of them with a budget, a task of two rounds, and its final models."""
    with federation(tmp_path_factory.mktemp("hospitals")) as live:
        privacy = {"mechanism": "xor", "epsilon": 3, "lifetime_epsilon": 9}
        live.run(live.join("north"), live.join("south", privacy=privacy))
        live.start("flu", rounds={"max_rounds": ROUNDS}, encoding="one_hot")
        live.until_finished("flu")
        for silo in live.silos.values():
            silo.agent.until("task_finished", task="flu")
        yield live


def page(live: Federation, silo: str) -> dict[str, float]:
    """An agent's page; series by name and label values."""
    return page_at(live.silos[silo].metrics_port)


def page_at(port: int) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as told:
        families = text_string_to_metric_families(told.read().decode())
    return {
        " ".join([sample.name, *sample.labels.values()]): sample.value
        for family in families
        for sample in family.samples
    }


def told(port: int) -> dict[str, float]:
    """The page of an agent that knows whose it is; empty before."""
    with suppress(OSError):
        shown = page_at(port)
        if any(name.startswith("consilium_agent_info") for name in shown):
            return shown
    return {}


def test_an_agent_shows_its_trainers_work(ended: Federation) -> None:
    shown = page(ended, "north")
    # One training for each ballot, one for the final model.
    assert shown["consilium_training_duration_seconds_count flu"] == ROUNDS + 1
    assert shown["consilium_training_duration_seconds_sum flu"] > 0
    assert shown["consilium_training_units flu"] == PRIVATE_ROWS
    assert shown["consilium_training_gpus flu"] == 0
    assert shown["consilium_agent_info north"] == 1
    assert any(name.startswith("consilium_agent_trainer_info") for name in shown)
    assert shown["process_resident_memory_bytes"] > 0
    assert shown["consilium_agent_trainer_up"] == 1
    assert shown["consilium_agent_ballots_total accepted flu"] == ROUNDS
    assert shown["consilium_agent_ballots_total round_closed flu"] == 0
    assert not [name for name in shown if "_created" in name]


def test_the_budget_of_a_task_goes_with_the_task_and_the_data_sets_stays(ended: Federation) -> None:
    shown = page(ended, "south")
    assert shown["consilium_agent_round flu"] == ROUNDS
    spent, budget = (f"consilium_privacy_epsilon_{kind}" for kind in ("spent", "budget"))
    assert {name for name in shown if name.startswith((spent, budget))} == {
        f"{spent} ",
        f"{budget} ",
    }
    assert shown[f"{budget} "] == 9
    assert 0 < shown[f"{spent} "] <= 3


def test_the_coordinators_page_says_nothing_of_training_or_budgets(ended: Federation) -> None:
    told = ended.metrics_page()
    assert "consilium_grpc_handled_total" in told
    assert "consilium_training" not in told
    assert "consilium_privacy" not in told
    assert "consilium_agent" not in told


def test_what_is_handed_out_again_is_no_second_training(ended: Federation) -> None:
    request = admin_pb2.GetTaskRequest(name="flu")
    digest = ended.admin(lambda link: link.admin.GetTask(request)).task.digest

    async def again() -> tuple[trainer_pb2.VoteResponse, trainer_pb2.FinishResponse]:
        trainer = TrainerClient(ended.silos["south"].home.socket)
        try:
            return await trainer.vote(digest, 1, None, 0), await trainer.finish(digest, None)
        finally:
            await trainer.close()

    before = len(ended.silos["south"].fits())
    ballot, model = asyncio.run(again())
    assert ballot.data
    assert not ballot.HasField("training")
    assert not model.HasField("training")
    assert len(ended.silos["south"].fits()) == before


def test_the_coordinators_page_knows_its_database_and_its_calls(ended: Federation) -> None:
    cast = {"method": "RoundsService/CastBallot", "status": "OK"}
    assert ended.counted("consilium_grpc_handled_total", **cast) == 2 * ROUNDS
    watching = {"method": "RoundsService/Watch"}
    assert ended.counted("consilium_grpc_calls_in_progress", **watching) == 2
    accepted = {"operation": "BallotStore.accept", "outcome": "done"}
    assert ended.counted("consilium_store_operations_total", **accepted) == 2 * ROUNDS
    assert ended.counted("consilium_store_up") == 1
    assert ended.counted("consilium_task_status", task="flu", status="finished") == 1
    assert ended.counted("consilium_silos", status="active") == 2


def test_a_suspended_silo_is_no_longer_expected(ended: Federation) -> None:
    assert ended.counted("consilium_silo_connected", silo="south") == 1
    request = admin_pb2.SuspendSiloRequest(name="south")
    ended.admin(lambda link: link.admin.SuspendSilo(request))
    eventually(
        "no word of south's connection",
        lambda: 'consilium_silo_connected{silo="south"}' not in ended.metrics_page(),
    )
    assert 'consilium_silo_connected{silo="north"} 1.0' in ended.metrics_page()


def test_an_agent_without_a_trainer_says_whose_it_is_and_what_it_lacks(ended: Federation) -> None:
    alone, port = ended.join("alone"), free_port()
    arguments = ["agent", "relay", "--home", str(alone.home.root), "--metrics-port", str(port)]
    agent = Service(arguments, ended.folder / "relay.log", {})
    agent.start()
    try:
        shown = eventually("a page", lambda: told(port))
        assert shown["consilium_agent_info alone"] == 1
        assert shown["consilium_agent_trainer_up"] == 0
        assert shown["consilium_agent_connected"] == 0
    finally:
        agent.end()

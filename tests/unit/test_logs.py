"""Logs: on the network side the text of an exception never appears, whoever logs it; its kind and place do."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from structlog.testing import capture_logs

from silo_agent.agent.audit.entries import Direction, Kind
from silo_agent.agent.audit.recorder import AuditLog
from silo_agent.agent.pace import Pace
from silo_agent.agent.worker import TaskWorker
from wire.consilium.v1 import task_pb2
from wire.errors import ConsiliumError
from wire.runtime.configuration import explain
from wire.task.definition import TaskDefinition

pytestmark = pytest.mark.slow

SECRET = "zzmalignantzz"
BEGIN = "import asyncio, logging, structlog\nfrom wire.runtime.logs import configure_logs\n"
FAIL = f"""
def predict(row):
    raise ValueError('{SECRET} in row ' + repr(row))
"""
WAYS = {
    "our own log.exception": """
try:
    predict('{secret}')
except ValueError:
    structlog.get_logger().exception('predicting_failed')
""",
    "an exception handed over": """
try:
    predict(1)
except ValueError as error:
    structlog.get_logger().error('predicting_failed', exc_info=error)
""",
    "a library's logger": """
try:
    predict(1)
except ValueError:
    logging.getLogger('library').exception('failed on %s', '{secret}')
""",
    "a library's warning": """
logging.getLogger('library').warning('unexpected row %s', '{secret}')
""",
    "a task nobody waited for": """
async def main():
    async def work():
        predict(1)
    task = asyncio.create_task(work())
    await asyncio.sleep(0.01)
    del task
asyncio.run(main())
""",
    "the end of the process": "predict(1)\n",
}


def logged(way: str, configure: str = "configure_logs('debug')") -> str:
    script = BEGIN + FAIL + configure + "\n" + WAYS[way].replace("{secret}", SECRET)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    return done.stdout + done.stderr


@pytest.mark.parametrize("way", WAYS)
def test_the_network_side_never_logs_an_exceptions_text(way: str) -> None:
    text = logged(way)
    assert SECRET not in text
    line = json.loads(text.splitlines()[-1])
    if way != "a library's warning":
        assert line["kind"] == "ValueError"
        assert any("predict" in place for place in line["where"])
    else:
        assert line["message"] == "unexpected row %s"


def test_the_private_sides_own_log_has_it() -> None:
    text = logged("our own log.exception", "configure_logs('debug', exception_text=True)")
    assert SECRET in text


def test_an_unexpected_error_of_the_agent_is_told_without_its_text_and_can_be_tried_again(
    tmp_path: Path,
) -> None:
    class Link:
        async def receipt(self, task: str, number: int) -> None:
            raise ValueError(SECRET)

    audit = AuditLog(tmp_path, lambda: datetime(2026, 3, 1, tzinfo=UTC))
    audit.record(Direction.OUT, Kind.BALLOT, "tumour", 1, 94, "ab" * 32)
    nothing: Any = None
    link: Any = Link()
    worker = TaskWorker(link, nothing, nothing, audit, nothing, Pace(0))
    definition = task_pb2.TaskDefinition(name="tumour")
    state = task_pb2.TaskState(status=task_pb2.TASK_STATUS_RUNNING, definition=definition)
    with capture_logs() as lines, pytest.raises(ConsiliumError) as caught:
        asyncio.run(worker._attempt(state))
    assert SECRET not in caught.value.sentence
    assert SECRET not in json.dumps(lines)
    assert [line["kind"] for line in lines] == ["ValueError"]


def test_a_task_that_is_not_valid_is_explained_without_its_labels() -> None:
    values = {"name": "tumour", "public_set": "wards", "labels": ["benign", [SECRET]]}
    with pytest.raises(ValidationError) as caught:
        TaskDefinition.model_validate({**values, "encoding": SECRET})
    sentence = explain(caught.value, TaskDefinition)
    assert "encoding" in sentence
    assert SECRET not in sentence

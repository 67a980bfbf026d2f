"""Certificates and authorities change under a federation at work, and it goes on as if nothing had happened."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
import pytest
from hospitals import Federation, until
from loopback import Consortium, Heart, beat
from patience import PATIENCE

from coordinator.api.interceptor import SERVICE_TABLE, AdmissionInterceptor
from coordinator.pki.authority import Authority
from coordinator.pki.certificate_keeper import ensure_leaf
from coordinator.pki.credentials import Credentials, ServerLeaf
from coordinator.pki.rotation import Authorities, begin, finish, prepare
from coordinator.settings import CoordinatorHome, CoordinatorSettings
from coordinator.store.actors import Caller
from silo_agent.agent.coordinator_client import CoordinatorClient
from wire.consilium.v1 import admin_pb2, ballot_pb2, rounds_pb2, rounds_pb2_grpc, task_pb2
from wire.errors import CERTIFICATE_SUPERSEDED, SERVER_UNTRUSTED, TLS_REFUSED, Refusal
from wire.identity.files import IdentityFiles
from wire.identity.identity import Role, issuer_of
from wire.net.channels import secure_channel, server_options
from wire.net.renewal import renew_identity
from wire.runtime.crash_points import VARIABLE
from wire.runtime.files import write_atomically


async def who(files: IdentityFiles) -> str:
    """The name under which the coordinator knows the holder of `files`; raises its refusal."""
    link = CoordinatorClient(files)
    try:
        return (await link.who_am_i(20)).name
    finally:
        await link.close()


class Rounds(rounds_pb2_grpc.RoundsServiceServicer):
    """A watch that says one thing, a ballot that takes its time."""

    def __init__(self) -> None:
        self.watches: list[int] = []
        self.casting = asyncio.Event()
        self.may_finish = asyncio.Event()

    async def Watch(
        self, request: rounds_pb2.WatchRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[rounds_pb2.WatchResponse]:
        self.watches.append(request.after_revision)
        await context.send_initial_metadata(())
        revision = request.after_revision + 1
        yield rounds_pb2.WatchResponse(task=task_pb2.TaskState(revision=revision))
        await asyncio.Event().wait()

    async def CastBallot(
        self,
        request_iterator: AsyncIterator[rounds_pb2.CastBallotRequest],
        context: grpc.aio.ServicerContext,
    ) -> rounds_pb2.CastBallotResponse:
        self.casting.set()
        await self.may_finish.wait()
        assert [part.WhichOneof("part") async for part in request_iterator] == ["header", "data"]
        return rounds_pb2.CastBallotResponse(receipt=ballot_pb2.Receipt(digest="d"))

    def register(self, server: grpc.aio.Server) -> None:
        rounds_pb2_grpc.add_RoundsServiceServicer_to_server(self, server)


class TestTheAgentsChannel:
    def two(self, consortium: Consortium, address: str) -> tuple[IdentityFiles, IdentityFiles]:
        """A silo's present identity and its next."""
        old, new = (
            replace(consortium.member(Role.SILO, "hospital-a"), coordinator_address=address)
            for _ in range(2)
        )
        return old, new

    def test_calls_under_way_end_on_the_old_channel_and_the_watch_goes_on_on_the_new(
        self, consortium: Consortium
    ) -> None:
        rounds = Rounds()

        async def scenario() -> tuple[IdentityFiles, IdentityFiles]:
            async with consortium.serving(rounds.register) as address:
                old, new = self.two(consortium, address)
                link, opened = CoordinatorClient(old), 0

                def count() -> None:
                    nonlocal opened
                    opened += 1

                async with aclosing(link.watch("i", 7, count)) as states:
                    assert (await anext(states)).revision == 8
                    casting = asyncio.create_task(link.cast(ballot_pb2.BallotHeader(), b"bits"))
                    await rounds.casting.wait()
                    await link.replace(new)
                    assert (await anext(states)).revision == 9
                    assert opened == 2
                    assert not casting.done()
                    rounds.may_finish.set()
                    assert (await casting).digest == "d"
                await link.close()
                return old, new

        old, new = asyncio.run(asyncio.wait_for(scenario(), PATIENCE))
        assert rounds.watches == [7, 8]
        # Each call is admitted twice: before it is read, and when its request is complete.
        assert sorted(fingerprint for _, fingerprint in consortium.admitted) == sorted(
            [old.certificate.fingerprint] * 4 + [new.certificate.fingerprint] * 2
        )

    def test_a_watcher_that_is_stopped_stops(self, consortium: Consortium) -> None:
        async def scenario() -> None:
            async with consortium.serving(Rounds().register) as address:
                old, new = self.two(consortium, address)
                link, heard = CoordinatorClient(old), asyncio.Event()

                async def watch() -> None:
                    async with aclosing(link.watch("i", 0, lambda: None)) as states:
                        async for _ in states:
                            heard.set()

                watching = asyncio.create_task(watch())
                await heard.wait()
                # Cancelled while its line retires: the cancellation must not be taken for the retirement.
                watching.cancel()
                await link.replace(new)
                await asyncio.wait({watching}, timeout=PATIENCE)
                assert watching.cancelled()
                await link.close()

        asyncio.run(asyncio.wait_for(scenario(), PATIENCE))

    def test_a_call_that_misses_the_change_is_made_again_with_the_new_certificate(
        self, consortium: Consortium
    ) -> None:
        heart = Heart()

        async def scenario() -> None:
            async def admit(caller: Caller) -> None:
                if caller.fingerprint == old.certificate.fingerprint:
                    await link.replace(new)
                    raise Refusal(CERTIFICATE_SUPERSEDED, name=caller.name)

            gate = AdmissionInterceptor(SERVICE_TABLE, admit, lambda code, method: None)
            async with consortium.serving(heart.register, gate=gate) as address:
                old, new = self.two(consortium, address)
                link = CoordinatorClient(old)
                await link.heartbeat("i", rounds_pb2.ACTIVITY_IDLE)
                await link.close()

        asyncio.run(asyncio.wait_for(scenario(), PATIENCE))
        assert heart.calls == 1

    def test_a_certificate_that_was_replaced_elsewhere_is_refused_for_good(
        self, consortium: Consortium
    ) -> None:
        async def scenario() -> None:
            async def admit(caller: Caller) -> None:
                raise Refusal(CERTIFICATE_SUPERSEDED, name=caller.name)

            gate = AdmissionInterceptor(SERVICE_TABLE, admit, lambda code, method: None)
            async with consortium.serving(Heart().register, gate=gate) as address:
                link = CoordinatorClient(self.two(consortium, address)[0])
                with pytest.raises(Refusal) as caught:
                    await link.heartbeat("i", rounds_pb2.ACTIVITY_IDLE)
                assert caught.value.is_a(CERTIFICATE_SUPERSEDED)
                await link.close()

        asyncio.run(asyncio.wait_for(scenario(), PATIENCE))


def test_a_running_server_follows_its_files(tmp_path: Path, now: datetime) -> None:
    home = CoordinatorHome(tmp_path)
    settings = CoordinatorSettings(consortium="rhine-clinics", hosts=("localhost",))
    old = Authority.create(home.authority, "rhine-clinics", now)
    ensure_leaf(home, settings, Authorities(old), now)

    def member(authority: Authority, name: str, trusted: bytes) -> IdentityFiles:
        files = Consortium(tmp_path / name, authority, now).member(Role.SILO, name)
        return replace(files, authorities_pem=trusted)

    async def scenario() -> None:
        async def admit(caller: Caller) -> None:
            return

        gate = AdmissionInterceptor(SERVICE_TABLE, admit, lambda code, method: None)
        server = grpc.aio.server(interceptors=[gate], options=server_options())
        Heart().register(server)
        credentials = Credentials(home)
        port = server.add_secure_port("127.0.0.1:0", credentials.for_port(mutual=True))
        await server.start()

        async def call(files: IdentityFiles) -> None:
            async with secure_channel(f"localhost:{port}", files) as channel:
                await beat(channel)

        early = member(old, "early", old.certificate_pem)
        await call(early)
        async with secure_channel(f"localhost:{port}", early) as lasting:
            await beat(lasting)
            prepare(home.authority, now)
            during = begin(home.authority)
            # Whoever only knows the old authority still verifies the server, and is still trusted.
            await call(early)
            await call(member(during.signing, "renewed", during.bundle_pem))
            # A file that is damaged meanwhile stops nobody.
            kept = (home.server / "key.pem").read_bytes()
            (home.server / "key.pem").write_text("nonsense")
            await call(early)
            (home.server / "key.pem").write_bytes(kept)
            after = finish(home.authority)
            ensure_leaf(home, settings, after, now)
            await call(member(after.signing, "late", after.bundle_pem))
            for files, fault in (
                (early, SERVER_UNTRUSTED),
                (replace(early, authorities_pem=after.bundle_pem), TLS_REFUSED),
            ):
                link = CoordinatorClient(replace(files, coordinator_address=f"localhost:{port}"))
                with pytest.raises(Refusal) as caught:
                    await link.heartbeat("i", rounds_pb2.ACTIVITY_IDLE)
                assert caught.value.code == fault.code, caught.value.sentence
                await link.close()
            # Connections made before live on; that they may is the store's to say, call by call.
            await beat(lasting)
        await server.stop(None)

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE))


def test_certificates_renew_themselves_while_rounds_go_on(tmp_path: Path) -> None:
    # Everything begins three quarters of an hour ago, with certificates for an hour; then it is now.
    clock = tmp_path / "clock"
    clock.write_text("-2700")
    lifetimes = ("--certificate-lifetime", "1h", "--server-certificate-lifetime", "1h")
    options = (*lifetimes, "--lease", "2h", "--metrics-per-silo")
    with Federation(tmp_path, options, clock) as federation:
        admin = IdentityFiles.load(federation.home.admin, Role.ADMIN)
        for name in ("hospital-a", "hospital-b"):
            federation.open(name)
        first = {name: hospital.files for name, hospital in federation.hospitals.items()}
        federation.start_task()
        federation.await_rounds(3)
        server = "consilium_server_certificate_expiry_timestamp_seconds"
        signed_until = _metric(federation, server)
        for hospital in federation.hospitals.values():
            assert not hospital.events("certificate_renewed")

        write_atomically(clock, b"0")
        for name, held in first.items():

            def replaced(name: str = name, held: IdentityFiles = held) -> bool:
                return held.certificate.fingerprint not in federation.holders(Role.SILO)[name]

            until(replaced, f"the renewal of {name}")
            with pytest.raises(Refusal) as caught:
                asyncio.run(who(held))
            assert caught.value.is_a(CERTIFICATE_SUPERSEDED)
        until(lambda: _metric(federation, server) > signed_until, "the server's renewal")
        federation.await_rounds(3)
        federation.assert_nothing_was_lost()

        for name, hospital in federation.hospitals.items():
            assert hospital.events("certificate_renewed")
            assert not hospital.events("renewal_failed")
            assert hospital.files.key_pem != first[name].key_pem
            expiry = _metric(
                federation, f'consilium_silo_certificate_expiry_timestamp_seconds{{silo="{name}"}}'
            )
            assert expiry > first[name].certificate.not_after.timestamp()
        assert _metric(federation, 'consilium_certificate_renewals_total{kind="silo"}') >= 2
        assert _metric(federation, 'consilium_certificate_renewals_total{kind="server"}') >= 1
        # The admin renewed too, by going about its work.
        kept = IdentityFiles.load(federation.home.admin, Role.ADMIN)
        assert kept.certificate.fingerprint != admin.certificate.fingerprint
        # Receipts signed by whichever certificate the server had then are all good.
        for hospital in federation.hospitals.values():
            assert not [entry for entry in hospital.log if "receipt" in entry["event"]]


def test_the_authority_is_replaced_while_everyone_stays_connected(tmp_path: Path) -> None:
    with Federation(tmp_path) as federation:
        for name in ("hospital-a", "hospital-b"):
            federation.open(name)
        old = replace(federation.hospitals["hospital-a"].files, folder=tmp_path / "old")
        old.store()
        federation.start_task()
        federation.await_rounds(3)
        made_before = federation.token("hospital-c")

        federation.run("coordinator", "rotate-authority")
        until(
            lambda: all(
                len(hospital.files.authorities) == 2 for hospital in federation.hospitals.values()
            ),
            "everyone's new bundle",
        )
        state = _status(federation)
        assert state["rotation"] == "under way"
        assert state["previous_authority"] == old_authority(old)
        federation.await_rounds(3)
        for hospital in federation.hospitals.values():
            files = hospital.files
            assert issuer_of(files.certificate_pem, files.authorities_pem) == state["authority"]

        # Tokens of before and of now both verify what the server shows, and give the new one's certificate.
        for name, token in (("hospital-c", made_before), ("hospital-d", "")):
            files = federation.join(name, token)
            assert issuer_of(files.certificate_pem, files.authorities_pem) == state["authority"]
            assert len(files.authorities) == 2
            assert asyncio.run(who(files)) == name

        unused = federation.token("hospital-e")
        refusal = federation.run("coordinator", "rotate-authority", "--finish", status=1)
        assert "admin admin (active)" in refusal
        assert "the join token of silo hospital-e" in refusal
        assert "hospital-a" not in refusal
        assert "valid until" in federation.run("admin", "renew")
        federation.run("silo", "revoke", "hospital-e", "--ballots", "drop", "--yes")
        federation.run("coordinator", "rotate-authority", "--finish")

        def follows() -> bool:
            leaf = ServerLeaf.read(federation.home.server).certificate
            return "Consilium authority 2" in leaf.issuer

        until(follows, "a server certificate of the new authority")
        assert _status(federation)["rotation"] == "none"

        federation.await_rounds(3)
        federation.assert_nothing_was_lost()
        assert federation.join("hospital-f").authorities.keys() == {state["authority"]}
        # Admins go on, the old authority's certificates do not, nor its tokens.
        assert len(_silos(federation)) == 6
        for stale, fault in (
            (old, SERVER_UNTRUSTED),
            (replace(old, authorities_pem=files.authorities_pem), TLS_REFUSED),
        ):
            with pytest.raises(Refusal) as caught:
                asyncio.run(who(stale))
            assert caught.value.code == fault.code
        with pytest.raises(Refusal):
            federation.join("hospital-e", unused)
        acts = [link.entry["act"] for link in federation.store.audit.page()]
        assert acts.count("authority_rotation_begun") == 1
        assert acts.count("authority_rotation_finished") == 1


@pytest.mark.parametrize("place", ["renewal-asking", "renewal-answered", "renewal-stored"])
def test_an_agent_killed_while_it_renews_has_an_identity_that_works(
    killed_at: Federation, place: str
) -> None:
    folder = killed_at.join(f"hospital-{place.rpartition('-')[2]}").folder
    script = (
        "import asyncio, sys\n"
        "from datetime import UTC, datetime\n"
        "from pathlib import Path\n"
        "from silo_agent.agent.coordinator_client import CoordinatorClient\n"
        "from wire.identity.files import IdentityFiles\n"
        "from wire.net.renewal import renew_identity\n"
        "async def renew():\n"
        "    link = CoordinatorClient(IdentityFiles.load(Path(sys.argv[1])))\n"
        "    await renew_identity(link.identity, link.renew, datetime.now(UTC))\n"
        "asyncio.run(renew())\n"
    )
    before = IdentityFiles.load(folder)
    done = subprocess.run(
        [sys.executable, "-c", script, str(folder)],
        env={**os.environ, VARIABLE: place},
        timeout=PATIENCE,
    )
    assert done.returncode == -9
    found = IdentityFiles.load(folder)
    assert (found.certificate_pem != before.certificate_pem) is (place == "renewal-stored")
    assert asyncio.run(who(found)) == found.name

    async def again() -> IdentityFiles:
        link = CoordinatorClient(found)
        try:
            return await renew_identity(found, link.renew, datetime.now(UTC))
        finally:
            await link.close()

    fresh = asyncio.run(again())
    assert asyncio.run(who(fresh)) == found.name
    assert killed_at.holders(Role.SILO)[found.name] == {fresh.certificate.fingerprint}


@pytest.fixture(scope="module")
def killed_at(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    with Federation(tmp_path_factory.mktemp("killed")) as federation:
        yield federation


def old_authority(files: IdentityFiles) -> str:
    (only,) = files.authorities
    return only


def _silos(federation: Federation) -> list[object]:
    request = admin_pb2.ListSilosRequest()
    return list(federation.administer(lambda link: link.admin.ListSilos(request)).silos)


def _status(federation: Federation) -> dict[str, Any]:
    return json.loads(federation.run("coordinator", "status", "--json"))


def _metric(federation: Federation, name: str) -> float:
    page = urllib.request.urlopen(
        f"http://127.0.0.1:{federation.metrics_port}/metrics", timeout=PATIENCE
    )
    for line in page.read().decode().splitlines():
        if line.startswith(f"{name} "):
            return float(line.rpartition(" ")[2])
    raise AssertionError(f"no {name}")

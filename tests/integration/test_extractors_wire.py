"""Extractors over the real wire: published by admins, fetched by silos, verified by trainers, used in a task."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import grpc
import numpy as np
import pytest
import yaml
from federation import LABELS, ROWS, Federation, Silo, federation, patients
from patience import PATIENCE
from service import CONSILIUM, Service, eventually

from coordinator.cli.extractors import _parts
from coordinator.cli.public_set import add
from silo_agent.agent.audit.entries import Direction
from silo_agent.agent.audit.entries import Kind as Moved
from silo_agent.agent.coordinator_client import CoordinatorClient
from silo_agent.agent.downloads import DownloadFolders
from silo_agent.agent.trainer_client import TrainerClient
from silo_agent.trainer.data.home_model import load_model
from wire.ballot import digest
from wire.consilium.v1 import admin_pb2, admin_pb2_grpc, registry_pb2, task_pb2
from wire.errors import (
    CONTENT_CORRUPT,
    CONTENT_MISSING,
    DATA_MISMATCH,
    EXTRACTOR_INVALID,
    EXTRACTOR_TOO_LARGE,
    EXTRACTOR_UNKNOWN,
    MESSAGE_MALFORMED,
    OFFSET_OUT_OF_RANGE,
    PUBLIC_SET_UNKNOWN,
    TASK_INVALID,
    WRONG_ROLE,
    Fault,
    Refusal,
)
from wire.extractor_file import (
    ExtractorFile,
    ExtractorHeader,
    ExtractorKind,
    read_extractor,
    write_extractor,
)
from wire.identity.files import IdentityFiles
from wire.net.channels import secure_channel, translated
from wire.runtime.cli import main
from wire.runtime.terminal import console
from wire.task.definition import TaskDefinition

T = TypeVar("T")
Parts = list[admin_pb2.PublishExtractorRequest]
NO_SET = "ab" * 32


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """A coordinator with two joined silos, whose learners see what the extractor makes of rows."""
    with federation(tmp_path_factory.mktemp("extractors")) as made:
        for name in ("north", "south"):
            silo = made.join(name, "decision_tree")
            settings = yaml.safe_load(silo.home.settings_file.read_text())
            silo.home.settings_file.write_text(yaml.safe_dump(settings | {"features": "extractor"}))
        yield made


def public_set(live: Federation) -> registry_pb2.PublicSet:
    request = registry_pb2.GetPublicSetRequest(reference="wards")
    return live.admin(lambda link: link.registry.GetPublicSet(request)).public_set


def made(folder: Path, of: str, direction: tuple[float, float] = (0.6, 0.8)) -> Path:
    """A one-dimensional extractor of rows with two numbers: what lies along `direction`."""
    header = ExtractorHeader(
        kind=ExtractorKind.PCA,
        public_set=of,
        row_shape=(2,),
        dimensions=1,
        public_norm=4.0,
        seed=0,
        steps=0,
    )
    content = ExtractorFile.of(
        header, mean=np.zeros(2), scale=np.ones(2), components=np.array([direction])
    )
    path = folder / "extractor"
    write_extractor(content, path)
    return path


def publish(live: Federation, parts: Parts) -> admin_pb2.PublishExtractorResponse:
    return live.admin(lambda link: link.admin.PublishExtractor(iter(parts)))


def parts_of(content: bytes, of: str, **said: Any) -> Parts:
    """What the command line would send of `content`, but for what is `said` otherwise."""
    header = {"public_set": of, "digest": digest(content), "size_bytes": len(content)} | said
    return [
        admin_pb2.PublishExtractorRequest(header=admin_pb2.ExtractorHeader(**header)),
        admin_pb2.PublishExtractorRequest(data=content),
    ]


def on_disk(live: Federation) -> set[str]:
    return {path.name for path in (live.home / "extractors").iterdir()}


def refused(fault: Fault, act: Callable[[], object]) -> str:
    with pytest.raises(Refusal) as caught:
        act()
    assert caught.value.code == fault.code, caught.value.sentence
    assert caught.value.hint
    return caught.value.sentence


def as_silo(silo: Silo, act: Callable[[CoordinatorClient], Awaitable[T]]) -> T:
    async def connected() -> T:
        link = CoordinatorClient(silo.identity())
        try:
            return await act(link)
        finally:
            await link.close()

    return asyncio.run(connected())


def calling(
    files: IdentityFiles, call: Callable[[admin_pb2_grpc.AdminServiceStub], Awaitable[T]]
) -> T:
    """The answer an admin's call gets under this identity."""

    async def connected() -> T:
        async with secure_channel(files.coordinator_address, files) as channel:
            try:
                return await call(admin_pb2_grpc.AdminServiceStub(channel))
            except grpc.aio.AioRpcError as error:
                raise await translated(error, files.coordinator_address, files) from error

    return asyncio.run(connected())


# -- publishing -------------------------------------------------------------------------------------------


def test_what_an_admin_publishes_a_silo_lists_and_fetches_from_where_it_was_cut(
    live: Federation, tmp_path: Path
) -> None:
    path, public = made(tmp_path, public_set(live).digest), public_set(live)
    content = path.read_bytes()
    first = publish(live, list(_parts(public.digest, path)))
    again = publish(live, list(_parts(public.digest, path)))
    assert (first.already_held, again.already_held) == (False, True)
    published = first.extractor
    assert again.extractor == published
    assert published.digest == digest(content)
    assert published.public_set == public.digest
    assert (published.kind, published.dimensions) == ("pca", 1)
    assert published.size_bytes == len(content)

    listing = registry_pb2.ListExtractorsRequest(public_set=public.digest)
    listed = live.admin(lambda link: link.registry.ListExtractors(listing)).extractors
    assert published in listed
    elsewhere = registry_pb2.ListExtractorsRequest(public_set=NO_SET)
    assert not live.admin(lambda link: link.registry.ListExtractors(elsewhere)).extractors

    folder = DownloadFolders.of(live.silos["north"].home).extractors
    whole = folder.path(published.digest)
    whole.with_name(f".{whole.name}.part").write_bytes(content[:100])

    async def fetch(link: CoordinatorClient) -> int:
        assert await link.extractor(published.digest) == published
        return await link.download(published, folder)

    assert as_silo(live.silos["north"], fetch) == len(content) - 100
    assert whole.read_bytes() == content
    assert list(whole.parent.iterdir()) == [whole]
    whole.unlink()


@pytest.mark.parametrize(
    ("fault", "make"),
    [
        (CONTENT_CORRUPT, lambda good, of: parts_of(good, of, digest="0" * 64)),
        (CONTENT_CORRUPT, lambda good, of: parts_of(good, of, size_bytes=len(good) + 1)),
        (CONTENT_CORRUPT, lambda good, of: parts_of(good, of, size_bytes=len(good) - 1)),
        (EXTRACTOR_INVALID, lambda good, of: parts_of(good[:-4], of)),
        (EXTRACTOR_INVALID, lambda good, of: parts_of(good[:-4] + b"\0\0\xc0\x7f", of)),
        (EXTRACTOR_INVALID, lambda good, of: parts_of(good.replace(of.encode(), b"c" * 64), of)),
        (EXTRACTOR_INVALID, lambda good, of: parts_of(b"pickle", of)),
        (EXTRACTOR_INVALID, lambda good, of: parts_of(b"", of)),
        (EXTRACTOR_UNKNOWN, lambda good, of: parts_of(good, of, digest="../wards")),
        (PUBLIC_SET_UNKNOWN, lambda good, of: parts_of(good, of, public_set=NO_SET)),
        (EXTRACTOR_TOO_LARGE, lambda good, of: parts_of(good, of, size_bytes=(64 << 20) + 1)),
        (MESSAGE_MALFORMED, lambda good, of: parts_of(good, of)[1:]),
        (MESSAGE_MALFORMED, lambda good, of: []),
    ],
    ids=[
        "other digest",
        "short",
        "long",
        "cut",
        "not a number",
        "of another set",
        "no extractor",
        "empty",
        "a path",
        "unknown set",
        "too large",
        "no header",
        "nothing",
    ],
)
def test_a_refused_upload_leaves_nothing_behind(
    live: Federation, tmp_path: Path, fault: Fault, make: Callable[[bytes, str], Parts]
) -> None:
    of = public_set(live).digest
    good = made(tmp_path, of, (1.0, 0.0)).read_bytes()
    before, counted = on_disk(live), live.counted("consilium_refusals_total", code=fault.code)
    refused(fault, lambda: publish(live, make(good, of)))
    assert on_disk(live) == before
    assert live.counted("consilium_refusals_total", code=fault.code) == counted + 1
    request = registry_pb2.GetExtractorRequest(digest=digest(good))
    refused(EXTRACTOR_UNKNOWN, lambda: live.admin(lambda link: link.registry.GetExtractor(request)))


def test_an_upload_that_breaks_leaves_nothing_behind(live: Federation, tmp_path: Path) -> None:
    of = public_set(live).digest
    good = made(tmp_path, of, (1.0, 0.0)).read_bytes()
    before = on_disk(live)

    async def halves() -> Any:
        header, data = parts_of(good, of)
        yield header
        yield admin_pb2.PublishExtractorRequest(data=data.data[:10])
        await asyncio.Event().wait()

    async def hang_up(stub: admin_pb2_grpc.AdminServiceStub) -> None:
        call = stub.PublishExtractor(halves())
        await asyncio.to_thread(eventually, "an upload", lambda: on_disk(live) != before)
        call.cancel()

    calling(IdentityFiles.load(live.home / "admin"), hang_up)
    eventually("the broken upload gone", lambda: on_disk(live) == before)


def test_a_bad_upload_of_a_published_extractor_does_not_take_it_away(
    live: Federation, tmp_path: Path
) -> None:
    of = public_set(live).digest
    good = made(tmp_path, of, (0.0, 1.0)).read_bytes()
    publish(live, parts_of(good, of))
    (tmp_path / "clinics.csv").write_text("age,marker\n1,2\n3,4\n")
    add("clinics", tmp_path / "clinics.csv", home=live.home)
    claimed = parts_of(good, "clinics")
    assert "another public set" in refused(EXTRACTOR_INVALID, lambda: publish(live, claimed))
    assert (live.home / "extractors" / digest(good)).read_bytes() == good


def test_a_silo_cannot_publish(live: Federation, tmp_path: Path) -> None:
    of, before = public_set(live).digest, on_disk(live)
    good = made(tmp_path, of, (1.0, 0.0)).read_bytes()

    async def publish_as_silo(stub: admin_pb2_grpc.AdminServiceStub) -> None:
        await stub.PublishExtractor(iter(parts_of(good, of)))

    files = live.silos["north"].identity()
    assert "PublishExtractor" in refused(WRONG_ROLE, lambda: calling(files, publish_as_silo))
    assert on_disk(live) == before


def test_what_is_not_there_is_refused_and_content_is_verified_by_whoever_fetches(
    live: Federation, tmp_path: Path
) -> None:
    of, north = public_set(live).digest, live.silos["north"]
    good = made(tmp_path, of, (-1.0, 0.0)).read_bytes()
    published = publish(live, parts_of(good, of)).extractor
    folder = DownloadFolders.of(north.home).extractors

    def fetch(about: registry_pb2.Extractor) -> None:
        as_silo(north, lambda link: link.download(about, folder))

    refused(EXTRACTOR_UNKNOWN, lambda: as_silo(north, lambda link: link.extractor("0" * 64)))
    unknown = registry_pb2.Extractor(digest="0" * 64, size_bytes=1)
    refused(EXTRACTOR_UNKNOWN, lambda: fetch(unknown))
    lengthened = registry_pb2.Extractor(digest=published.digest, size_bytes=2 * len(good))
    (folder.path(published.digest).with_name(f".{published.digest}.part")).write_bytes(good + b"x")
    assert "extractor" in refused(OFFSET_OUT_OF_RANGE, lambda: fetch(lengthened))

    at_coordinator = live.home / "extractors" / published.digest
    at_coordinator.write_bytes(good[:-1] + b"\1")
    assert "extractor" in refused(CONTENT_CORRUPT, lambda: fetch(published))
    assert not folder.has(published.digest)
    at_coordinator.unlink()
    assert published.digest in refused(CONTENT_MISSING, lambda: fetch(published))
    # The way out that its hint names.
    assert publish(live, parts_of(good, of)).already_held
    folder.path(published.digest).with_name(f".{published.digest}.part").unlink()
    fetch(published)
    assert folder.path(published.digest).read_bytes() == good
    folder.discard(published.digest)


def test_a_coordinator_says_at_its_start_what_it_lacks_and_sweeps_what_was_never_whole(
    live: Federation, tmp_path: Path
) -> None:
    of = public_set(live).digest
    good = made(tmp_path, of, (-2.0, 0.0)).read_bytes()
    publish(live, parts_of(good, of))
    (live.home / "extractors" / digest(good)).unlink()
    (live.home / "extractors" / ".upload-0123.part").write_bytes(good[:9])
    live.coordinator.kill()
    live.serve()
    [missing] = live.coordinator.events("extractor_missing")
    assert (missing["digest"], missing["public_set"]) == (digest(good), of)
    assert not any(name.endswith(".part") for name in on_disk(live))
    assert publish(live, parts_of(good, of)).already_held
    assert digest(good) in on_disk(live)


# -- the command line -------------------------------------------------------------------------------------


def consilium(*arguments: object) -> int:
    """Runs a command in this process; its exit status."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["consilium", *map(str, arguments)])
        # Another test may have set a width, which then outlives it.
        patch.setattr(console, "width", 200)
        patch.setenv("OMP_NUM_THREADS", "1")
        try:
            main()
        except SystemExit as ended:
            return int(ended.code or 0)
    return 0


def test_pretraining_publishes_what_the_public_rows_teach(
    live: Federation,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def told(*arguments: object, status: int = 0) -> str:
        """What a command and the training it starts say: on standard output, or why it failed."""
        capfd.readouterr()
        ended = consilium("public-set", *arguments, "--home", live.home)
        out, err = capfd.readouterr()
        assert ended == status, out + err
        assert not (out if status else err)
        return err if status else out

    trained = told("pretrain", "wards@1", "--kind", "pca", "--dimensions", 1, "--seed", 5)
    assert "wards@1: pca, 1 dimensions" in trained
    published = yaml.safe_load(trained.splitlines()[-1])["extractor"]
    header = read_extractor(live.home / "extractors" / published).header
    assert (header.seed, header.public_set) == (5, public_set(live).digest)
    listed = json.loads(told("extractors", "wards", "--json"))["extractors"]
    assert published in [extractor["digest"] for extractor in listed]
    table = told("extractors")
    assert "wards@1" in table
    assert published in table

    before = on_disk(live)
    assert "directions only" in told("pretrain", "wards", "--dimensions", 99, status=1)
    assert "PUBLIC_SET_UNKNOWN" in told("pretrain", "beds", status=1)
    refused = told("pretrain", "wards", "--kind", "magic", status=1)
    assert all(kind in refused for kind in ("magic", "auto", *ExtractorKind))
    assert on_disk(live) == before
    assert list(tmp_path.iterdir()) == []


def trains(parent: int) -> bool:
    """True once a child of this process has loaded the library it trains with."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return any("libtorch" in Path(f"/proc/{child}/maps").read_text() for child in children)


def gone(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False


def test_a_training_that_is_interrupted_publishes_and_leaves_nothing(
    live: Federation, tmp_path: Path
) -> None:
    before, scratch = on_disk(live), tmp_path / "scratch"
    scratch.mkdir()
    training = subprocess.Popen(
        [
            *(CONSILIUM, "public-set", "pretrain", "wards", "--home", live.home),
            *("--kind", "denoising", "--steps", "1000000000"),
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        # Whoever runs these tests in the background of a shell has them ignore it, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        env=os.environ | {"TMPDIR": str(scratch), "OMP_NUM_THREADS": "1"},
    )
    try:
        # Not merely forked: between fork and exec it would not hear the signal.
        eventually("a training", lambda: trains(training.pid))
        os.killpg(training.pid, signal.SIGINT)
        assert training.wait(PATIENCE) == 130
    finally:
        if training.poll() is None:
            os.killpg(training.pid, signal.SIGKILL)
        training.communicate()
    # Killed with it; init takes a moment to bury what its parent no longer waited for.
    eventually("the end of the training", lambda: gone(training.pid))
    assert on_disk(live) == before
    assert list(scratch.iterdir()) == []


# -- in a task --------------------------------------------------------------------------------------------


def create(live: Federation, name: str, extractor: str) -> task_pb2.TaskDefinition:
    task = TaskDefinition.model_validate(
        {"name": name, "public_set": "wards", "labels": LABELS, "extractor": extractor}
    )
    request = admin_pb2.CreateTaskRequest(definition=task.to_proto())
    return live.admin(lambda link: link.admin.CreateTask(request)).task.definition


def test_a_task_names_an_extractor_of_its_set_or_the_latest(
    live: Federation, tmp_path: Path
) -> None:
    of = public_set(live).digest
    older, newest = (
        publish(live, parts_of(made(tmp_path, of, way).read_bytes(), of)).extractor.digest
        for way in ((0.0, 2.0), (0.0, 3.0))
    )
    assert create(live, "by-digest", older).extractor == older
    assert create(live, "by-word", "latest").extractor == newest
    sentence = refused(TASK_INVALID, lambda: create(live, "by-guess", "ab" * 32))
    assert "wards@1 has no extractor" in sentence


def test_hospitals_learn_from_what_the_extractor_makes_of_their_rows(
    live: Federation, tmp_path: Path
) -> None:
    of = public_set(live).digest
    content = made(tmp_path, of, (0.7, 0.7)).read_bytes()
    chosen = publish(live, parts_of(content, of)).extractor.digest
    north, south = live.silos["north"], live.silos["south"]
    # North has a copy that was damaged on its disk: it is found, and fetched anew.
    held = DownloadFolders.of(north.home).extractors.path(chosen)
    held.write_bytes(content[:-1] + b"\1")
    live.run(north, south)
    live.start("together", extractor="latest", rounds={"max_rounds": 2})
    finished = live.until_finished("together")
    assert finished.task.definition.extractor == chosen
    assert len(live.ballots("together")) == 4
    assert held.read_bytes() == content
    assert [e["code"] for e in north.agent.events("task_delayed")] == ["CONTENT_CORRUPT"]
    for silo in (north, south):
        silo.agent.until("task_finished")
        came = [moved for moved in silo.audit_entries() if moved.kind is Moved.EXTRACTOR]
        # North's own copy was not in its record either.
        assert len(came) == (2 if silo is north else 1)
        assert {(m.direction, m.digest, m.bytes) for m in came} == {
            (Direction.IN, chosen, len(content))
        }
        [kept] = silo.home.tasks.glob("*/model.joblib")
        model, rows = load_model(kept), patients(20, seed=9)
        seen = rows[["age", "marker"]].to_numpy() @ np.array([[0.7], [0.7]])
        expected = [LABELS[index] for index in model.learner.predict(seen)]
        assert model.predict(rows) == expected
        assert silo.agent.stop() == 0


def test_a_trainer_believes_no_extractor_but_the_one_the_task_names(
    live: Federation, tmp_path: Path
) -> None:
    public, home = public_set(live), live.silos["south"].home
    exchange = DownloadFolders.of(home)
    as_silo(live.silos["south"], lambda link: _present(link, public, exchange))
    good = made(tmp_path, public.digest, (0.5, 0.5)).read_bytes()
    foreign = good.replace(public.digest.encode(), b"c" * 64)

    def task(extractor: str) -> task_pb2.TaskDefinition:
        return TaskDefinition(
            name="trial",
            public_set=public.digest,
            rows=ROWS,
            labels=LABELS,
            extractor=extractor,
        ).to_proto()

    async def scenario() -> None:
        link = TrainerClient(home.socket)

        async def refuses(fault: Fault, named: str) -> str:
            with pytest.raises(Refusal) as caught:
                await link.prepare(task(named), "south")
            assert caught.value.code == fault.code, caught.value.sentence
            return caught.value.sentence

        await link.wait_ready()
        wanted = digest(good)
        with pytest.raises(Refusal) as nameless:
            await link.propose(task("../trainer.sock"))
        assert nameless.value.is_a(EXTRACTOR_UNKNOWN)
        assert "extractor" in await refuses(CONTENT_CORRUPT, wanted)
        exchange.extractors.path(wanted).write_bytes(foreign)
        assert "extractor" in await refuses(CONTENT_CORRUPT, wanted)
        for bad, why in ((foreign, "another public set"), (b"pickle", "does not begin like one")):
            exchange.extractors.path(digest(bad)).write_bytes(bad)
            assert why in await refuses(EXTRACTOR_INVALID, digest(bad))
        exchange.extractors.path(wanted).write_bytes(good)
        await link.prepare(task(wanted), "south")
        await refuses(DATA_MISMATCH, "")
        await link.close()

    trainer = Service(
        ["agent", "trainer", "--home", str(home.root)],
        tmp_path / "trainer.log",
        {"OMP_NUM_THREADS": "1"},
    )
    trainer.start()
    try:
        asyncio.run(scenario())
    finally:
        trainer.end()
        print(trainer.text())


async def _present(
    link: CoordinatorClient, public: registry_pb2.PublicSet, exchange: DownloadFolders
) -> None:
    if not exchange.public_sets.has(public.digest):
        await link.download(public, exchange.public_sets)

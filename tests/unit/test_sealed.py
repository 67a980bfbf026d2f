"""Encrypted backups: whole or refused, whatever was done to the file, and nothing to read without the passphrase."""

from __future__ import annotations

import io
import stat
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt
from typer.testing import CliRunner

from coordinator.cli.coordinator import app, init
from coordinator.settings import CoordinatorHome
from silo_agent.shared.home import SiloHome
from silo_agent.trainer.cli.agent import private
from wire.errors import ConfigurationError
from wire.identity.files import IdentityFiles
from wire.identity.identity import Role
from wire.runtime.archive import pack, unpack
from wire.runtime.sealed import CHUNK, MAGIC, OpeningReader, SealingWriter, opened

PASSPHRASE = "correct horse battery"
HEADER = len(MAGIC) + 1 + 16 + 7
SEALED_CHUNK = CHUNK + 16


def sealed(plain: bytes, passphrase: str = PASSPHRASE) -> bytes:
    """Sealed cheaply: as little work for scrypt as a reader allows."""
    out = io.BytesIO()
    writer = SealingWriter(out, passphrase, log_cost=14)
    for at in range(0, len(plain), 10_240):
        writer.write(plain[at : at + 10_240])
    writer.finish()
    return out.getvalue()


def unsealed(content: bytes, passphrase: str = PASSPHRASE) -> bytes:
    return opened(io.BytesIO(content), lambda: passphrase).read()


@pytest.mark.parametrize("size", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK, 3 * CHUNK + 7])
def test_what_went_in_comes_out(size: int) -> None:
    plain = bytes(index % 251 for index in range(size))
    content = sealed(plain)
    assert unsealed(content) == plain
    assert len(plain) < 40 or plain[:40] not in content
    reader = opened(io.BytesIO(content), lambda: PASSPHRASE)
    assert b"".join(iter(lambda: reader.read(1000), b"")) == plain


def test_it_is_the_published_construction() -> None:
    """Opened here with the primitives alone, as docs/backup.md describes it."""
    plain = b"x" * (CHUNK + 5)
    content = sealed(plain)
    header, body = content[:HEADER], content[HEADER:]
    salt, prefix = header[-23:-7], header[-7:]
    key = Scrypt(salt=salt, length=32, n=1 << header[-24], r=8, p=1).derive(PASSPHRASE.encode())
    first = AESGCM(key).decrypt(prefix + b"\0\0\0\0\0", body[:SEALED_CHUNK], header)
    last = AESGCM(key).decrypt(prefix + b"\0\0\0\1\1", body[SEALED_CHUNK:], header)
    assert first + last == plain


def test_two_backups_of_the_same_share_nothing() -> None:
    assert sealed(b"same")[len(MAGIC) + 1 :] != sealed(b"same")[len(MAGIC) + 1 :]


@pytest.mark.parametrize("passphrase", ["", "correct horse batterY", PASSPHRASE + " "])
def test_another_passphrase_opens_nothing(passphrase: str) -> None:
    with pytest.raises(ConfigurationError, match="does not open"):
        unsealed(sealed(b"entries"), passphrase)


def chunks(content: bytes) -> list[bytes]:
    body = content[HEADER:]
    return [body[at : at + SEALED_CHUNK] for at in range(0, len(body), SEALED_CHUNK)]


PLAIN = bytes(range(256)) * ((3 * CHUNK + 512) // 256)


def test_every_way_to_cut_move_or_repeat_chunks_is_refused() -> None:
    content = sealed(PLAIN)
    head, parts = content[:HEADER], chunks(content)
    assert len(parts) == 4
    first, second, third, last = parts
    for order in (
        [first, second, third],
        [first, second, last],
        [second, first, third, last],
        [first, first, second, third, last],
        [first, second, third, last, last],
        [last],
        [],
    ):
        with pytest.raises(ConfigurationError, match="encrypted backup"):
            unsealed(head + b"".join(order))


@pytest.mark.parametrize("cut", [1, 15, 16, 17, 512, SEALED_CHUNK, 2 * SEALED_CHUNK])
def test_a_file_that_ends_too_early_is_refused(cut: int) -> None:
    with pytest.raises(ConfigurationError, match="encrypted backup"):
        unsealed(sealed(PLAIN)[:-cut])


@pytest.mark.parametrize(
    "place", [len(MAGIC), len(MAGIC) + 3, HEADER - 1, HEADER, HEADER + SEALED_CHUNK, -1]
)
def test_a_changed_byte_is_refused(place: int) -> None:
    content = bytearray(sealed(PLAIN))
    content[place] ^= 1
    with pytest.raises(ConfigurationError, match="encrypted backup"):
        unsealed(bytes(content))


@pytest.mark.parametrize("cost", [0, 13, 21, 63, 255])
def test_a_header_cannot_ask_for_all_memory(cost: int) -> None:
    content = bytearray(sealed(b""))
    content[len(MAGIC)] = cost
    with pytest.raises(ConfigurationError, match="damaged"):
        OpeningReader(io.BytesIO(bytes(content)), PASSPHRASE)


def test_a_chunk_of_another_backup_is_refused() -> None:
    one, other = sealed(PLAIN), sealed(PLAIN)
    with pytest.raises(ConfigurationError, match="encrypted backup"):
        unsealed(one[:HEADER] + other[HEADER:])


def test_what_is_not_sealed_is_read_as_it_is() -> None:
    for content in (b"", b"c", MAGIC[:-1], b"tar" * 100):
        assert opened(io.BytesIO(content), lambda: pytest.fail("asked")).read() == content


def test_a_backup_cut_off_behind_its_last_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "from").mkdir()
    (tmp_path / "from" / "ledger.db").write_bytes(b"e" * 3 * CHUNK)
    plain = io.BytesIO()
    pack(tmp_path / "from", plain, "trainer")
    content = sealed(plain.getvalue() + bytes(CHUNK))
    (tmp_path / "to").mkdir()
    cut = opened(io.BytesIO(content[:-SEALED_CHUNK]), lambda: PASSPHRASE)
    with pytest.raises(ConfigurationError, match="encrypted backup"):
        unpack(cut, tmp_path / "to", "trainer")


# -- as commands ---------------------------------------------------------------------------------------


@pytest.fixture
def passphrase(tmp_path: Path) -> list[str]:
    (tmp_path / "passphrase").write_text(PASSPHRASE + "\n")
    return ["--passphrase-file", str(tmp_path / "passphrase")]


@pytest.mark.slow
def test_a_coordinators_backup_holds_no_admins_key_and_comes_back(
    tmp_path: Path, passphrase: list[str]
) -> None:
    init(home=tmp_path / "live", host=["localhost"])
    live, again = CoordinatorHome(tmp_path / "live"), CoordinatorHome(tmp_path / "again")
    key = IdentityFiles.load(live.admin, Role.ADMIN).key_path.read_bytes()
    folder, file = tmp_path / "folder", tmp_path / "file"

    def run(*words: str) -> str:
        result = CliRunner().invoke(app, list(words))
        if isinstance(result.exception, ConfigurationError):
            return result.exception.sentence
        assert result.exit_code == 0, result.output
        return result.output

    run("backup", "--out", str(folder), "--home", str(live.root))
    assert not any(key in path.read_bytes() for path in folder.rglob("*") if path.is_file())
    assert not CoordinatorHome(folder).admin.exists()

    run("backup", "--out", str(file), "--encrypt", *passphrase, "--home", str(live.root))
    assert file.read_bytes().startswith(MAGIC)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    (tmp_path / "wrong").write_text("another passphrase")
    wrong = ["--passphrase-file", str(tmp_path / "wrong"), "--home", str(again.root)]
    assert "passphrase is another" in run("restore", str(file), *wrong)
    run("restore", str(file), *passphrase, "--home", str(again.root))
    assert not again.admin.exists()
    run("admit-admin", "--yes", "--home", str(again.root))
    assert IdentityFiles.load(again.admin, Role.ADMIN).key_path.read_bytes() != key


@pytest.mark.slow
def test_a_hospitals_backup_comes_back_encrypted(tmp_path: Path, passphrase: list[str]) -> None:
    home, again = SiloHome(tmp_path / "silo"), SiloHome(tmp_path / "again")
    home.trainer.mkdir(parents=True)
    (home.trainer / "approvals.jsonl").write_bytes(b"approved by anna")
    file = tmp_path / "file"
    words = ["backup", "--out", str(file), "--encrypt", *passphrase, "--home", str(home.root)]
    assert CliRunner().invoke(private, words).exit_code == 0
    assert b"anna" not in file.read_bytes()
    words = ["restore", str(file), *passphrase, "--home", str(again.root)]
    assert CliRunner().invoke(private, words).exit_code == 0
    assert (again.trainer / "approvals.jsonl").read_bytes() == b"approved by anna"


@pytest.mark.parametrize("text", ["", "short", "elevenchars"])
def test_a_passphrase_that_can_be_guessed_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "passphrase").write_text(text)
    (tmp_path / "trainer").mkdir()
    words = ["backup", "--out", str(tmp_path / "out"), "--encrypt", "--home", str(tmp_path)]
    file = ["--passphrase-file", str(tmp_path / "passphrase")]
    result = CliRunner().invoke(private, [*words, *file])
    assert isinstance(result.exception, ConfigurationError)
    assert not (tmp_path / "out").exists()

"""Join tokens survive copying whole, and nothing less."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.pki.authority import Authority
from wire.errors import TOKEN_MALFORMED, Refusal
from wire.identity.identity import Role
from wire.identity.join_token import JoinToken, secret_digest, secret_matches

pytestmark = pytest.mark.slow

NOW = datetime(2031, 5, 6, 7, 8, 9, 123456, tzinfo=UTC)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.create(tmp_path_factory.mktemp("authority"), "rhine-clinics", NOW)


@pytest.fixture(scope="module")
def token(authority: Authority) -> JoinToken:
    return JoinToken.issue(
        "coordinator.example.org:7444",
        "rhine-clinics",
        Role.SILO,
        "hospital-a",
        NOW + timedelta(days=1),
        authority.certificate,
    )


def assert_malformed(line: str) -> None:
    with pytest.raises(Refusal) as caught:
        JoinToken.parse(line)
    assert caught.value.is_a(TOKEN_MALFORMED)


def test_a_token_survives_the_trip_as_text(token: JoinToken, authority: Authority) -> None:
    arrived = JoinToken.parse(token.line)
    assert arrived == token
    assert (arrived.role, arrived.name) == (Role.SILO, "hospital-a")
    assert arrived.expires_at == datetime(2031, 5, 7, 7, 8, 9, tzinfo=UTC)
    assert arrived.authority_pem == authority.certificate_pem
    assert arrived.authority_fingerprint == authority.fingerprint


def test_a_token_is_one_printable_line_that_a_terminal_accepts(token: JoinToken) -> None:
    # Terminals take at most 4095 characters in a line.
    assert len(token.line) < 1024
    assert set(token.line) <= set(
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_."
    )


def test_line_breaks_added_on_the_way_do_no_harm(token: JoinToken) -> None:
    wrapped = "\r\n  ".join(token.line[at : at + 76] for at in range(0, len(token.line), 76))
    assert JoinToken.parse(f"  {wrapped}\n") == token


@given(data=st.data())
def test_every_truncation_is_noticed(token: JoinToken, data: st.DataObject) -> None:
    assert_malformed(token.line[: data.draw(st.integers(0, len(token.line) - 1))])


@given(data=st.data())
def test_a_changed_character_is_noticed(token: JoinToken, data: st.DataObject) -> None:
    # The last character carries unused bits, so two spellings of it may mean the same.
    at = data.draw(st.integers(0, len(token.line) - 2))
    other = data.draw(st.sampled_from("Ab0-_").filter(lambda letter: letter != token.line[at]))
    assert_malformed(token.line[:at] + other + token.line[at + 1 :])


@given(st.text())
def test_any_other_text_is_malformed_and_nothing_worse(text: str) -> None:
    assert_malformed(text)
    assert_malformed(f"consilium-join-1.{text}")


def test_the_secret_is_not_shown_by_accident(token: JoinToken) -> None:
    assert token.secret not in repr(token)
    assert token.secret not in str(token)
    assert token.token_id in repr(token)


def test_secrets_are_256_fresh_bits(authority: Authority, token: JoinToken) -> None:
    again = JoinToken.issue(
        token.enrolment_address,
        token.consortium,
        token.role,
        token.name,
        NOW,
        authority.certificate,
    )
    assert len(bytes.fromhex(token.secret)) == 32
    assert again.secret != token.secret
    assert again.token_id != token.token_id


def test_only_the_secret_itself_matches_its_digest(token: JoinToken) -> None:
    digest = secret_digest(token.secret)
    assert token.secret not in digest
    assert secret_matches(token.secret, digest)
    assert not secret_matches(token.secret[:-1] + "x", digest)
    assert not secret_matches("", digest)


def test_a_token_for_an_impossible_name_is_malformed(authority: Authority, tmp_path: Path) -> None:
    token = JoinToken.issue(
        "host:1", "rhine-clinics", Role.SILO, "../etc", NOW, authority.certificate
    )
    assert_malformed(token.line)

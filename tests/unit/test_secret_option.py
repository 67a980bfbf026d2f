"""Secrets of commands come from files: a command line can be read by every account of a machine."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from wire.errors import ConfigurationError
from wire.runtime.secret_option import secret_text


def test_an_admin_joins_with_a_token_from_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin = importlib.import_module("coordinator.cli.admin")
    redeemed: list[str] = []

    async def redeem(token: str, *_: Any, **__: Any) -> None:
        redeemed.append(token)
        raise ConfigurationError("far enough")

    monkeypatch.setattr(admin, "redeem", redeem)
    (tmp_path / "token").write_text("consilium-join-1.abc\n")
    CliRunner().invoke(admin.app, ["join", f"@{tmp_path / 'token'}", "--home", str(tmp_path)])
    assert redeemed == ["consilium-join-1.abc"]


def test_what_cannot_be_read_is_named_and_not_quoted(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff hunter2")
    (tmp_path / "long").write_bytes(b"hunter2" * 20_000)
    for name in ("binary", "long", "none"):
        with pytest.raises(ConfigurationError) as caught:
            secret_text(f"@{tmp_path / name}")
        assert str(tmp_path / name) in caught.value.sentence
        assert "hunter2" not in caught.value.sentence
    assert secret_text("as given") == "as given"

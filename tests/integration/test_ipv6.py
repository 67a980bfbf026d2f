"""A coordinator that silos know by an IPv6 address."""

from __future__ import annotations

from pathlib import Path

from coordinator_process import consilium, running_coordinator

from wire.identity.files import IdentityFiles
from wire.identity.join_token import JoinToken


def test_a_silo_joins_and_connects_at_an_ipv6_address(tmp_path: Path) -> None:
    with running_coordinator(tmp_path, host="::1", listen="::") as coordinator:
        token = coordinator.register("north")
        assert JoinToken.parse(token).enrolment_address == f"[::1]:{coordinator.enrolment_port}"
        consilium("agent", "join", token, "--home", tmp_path / "north")
        files = IdentityFiles.load(tmp_path / "north" / "identity")
        assert files.coordinator_address == f"[::1]:{coordinator.port}"
        # Dials by itself, and by gRPC.
        told = consilium(
            "agent", "doctor", "--network-only", "--json", "--home", tmp_path / "north", status=None
        )
        failed = [one for one in told.json()["findings"] if one["status"] == "failed"]
        assert not failed, failed
        # The admin in the coordinator's own folder too.
        assert "north" in consilium("silo", "list", "--home", coordinator.home).out

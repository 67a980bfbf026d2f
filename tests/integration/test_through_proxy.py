"""A hospital whose only way out is an HTTP proxy: it joins, watches, votes and finishes through it."""

from __future__ import annotations

from pathlib import Path

import pytest
from coordinator_process import (
    SECRETS,
    background,
    consilium,
    federation_through,
    running_coordinator,
    wait_for,
    write_data,
)
from proxy import running_proxy

# A name nobody here can resolve but the proxy: what arrives at the coordinator came through it.
HOST = "coordinator.invalid"


def test_a_federation_through_a_proxy(tmp_path: Path) -> None:
    with (
        running_coordinator(tmp_path, HOST) as coordinator,
        running_proxy(tmp_path, coordinator_invalid="127.0.0.1") as proxy,
    ):
        federation_through(proxy.url, coordinator, tmp_path)
        doctor = consilium(
            "agent", "doctor", "--home", tmp_path / "north", "--json", proxy=proxy.url
        )
    schema = next(each for each in doctor.json()["findings"] if each["name"] == "data schema")
    assert schema["status"] == "ok"
    asked = proxy.requests()
    assert asked.count(f"200 {HOST}:{coordinator.enrolment_port}") == 2
    assert asked.count(f"200 {HOST}:{coordinator.port}") == len(asked) - 2 > 2


def test_a_wrong_password_is_told_as_such(tmp_path: Path) -> None:
    with (
        running_coordinator(tmp_path, HOST) as coordinator,
        running_proxy(tmp_path, coordinator_invalid="127.0.0.1") as proxy,
    ):
        home, token = tmp_path / "north", coordinator.register("north")
        write_data(home, 10, seed=0)
        join = ("agent", "join", token, "--home", home)
        told = consilium(*join, proxy=proxy.wrong_url, status=1)
        assert "PROXY_REFUSED" in told.err
        assert "407 Proxy Authentication Required" in told.err
        assert "Check the user and the password" in told.err
        consilium(*join, proxy=proxy.url)
        log = tmp_path / "north.log"
        with background("agent", "run", "--home", home, log=log, proxy=proxy.wrong_url):
            wait_for("407 Proxy Authentication Required", log)
        assert not any(secret in log.read_text() for secret in SECRETS)


@pytest.mark.parametrize("verb", ["join", "run", "relay", "doctor"])
def test_a_setting_that_is_no_proxy_is_refused_before_anything_starts(
    tmp_path: Path, verb: str
) -> None:
    arguments = ["TOKEN"] if verb == "join" else []
    told = consilium(
        "agent", verb, *arguments, "--home", tmp_path, proxy="socks5://ada:guess@wall", status=1
    )
    assert "does not begin with http://" in told.err

"""Nobody writes to the store without being judged in the same transaction: read from the code itself."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from standing_contract import ADMIN_ACTS, SILO_ACTS

import coordinator.api
import coordinator.store

STORE = Path(coordinator.store.__file__).parent
API = Path(coordinator.api.__file__).parent

# Transactions that are not opened by `acting` or `snapshot`, and why.
BEGUN = {
    "standing.acting": "judges a caller first",
    "members.redeem": "judges the token's secret and its member's state under the member's lock",
    "members.renew": "judges the caller first, with the member's row for itself",
    "members.admit": "is the judgement",
    "__init__.notify": "writes nothing",
}


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def calls(node: ast.AST, name: str) -> list[ast.Call]:
    found = (one for one in ast.walk(node) if isinstance(one, ast.Call))
    return [one for one in found if getattr(one.func, "attr", getattr(one.func, "id", "")) == name]


def begun() -> set[str]:
    """Where the store opens a transaction that may write."""
    return {
        f"{path.stem}.{function.name}"
        for path in sorted(STORE.glob("*.py"))
        if path.stem != "engine"
        for function in functions(ast.parse(path.read_text()))
        if calls(function, "begin") or calls(function, "connect")
    }


def test_a_transaction_that_may_write_judges_who_acts() -> None:
    # An advisory lock in a session of its own, and a backup's copy of a database: no writing of the store's.
    other = ("close_lock.", "sqlite_copy.")
    assert {place for place in begun() if not place.startswith(other)} == set(BEGUN)


def acts_of_callers() -> set[str]:
    """The methods of the store that take a caller."""
    found = set()
    for path in sorted(STORE.glob("*.py")):
        for function in functions(ast.parse(path.read_text())):
            named = [arg for arg in function.args.args if arg.arg == "by"]
            kinds = {ast.unparse(arg.annotation) for arg in named if arg.annotation}
            if kinds & {"Caller", "Actor"} and not function.name.startswith("_"):
                found.add(f"{path.stem}.{function.name}")
    return found - {"audit.record", "rounds.record_dropped", "standing.acting"}


def test_every_act_of_a_caller_is_tried_with_one_that_is_no_longer_good() -> None:
    assert acts_of_callers() == set(SILO_ACTS) | set(ADMIN_ACTS)


def test_no_call_acts_as_the_coordinator_itself() -> None:
    local = {
        path.stem: [
            name.id
            for name in ast.walk(ast.parse(path.read_text()))
            if isinstance(name, ast.Name)
            and name.id in {"LocalActor", "COORDINATOR", "OPERATOR", "INIT"}
        ]
        for path in API.glob("*.py")
    }
    assert {module for module, names in local.items() if names} == set()

"""Every admin command against a coordinator that fills every field with what steers terminals."""

from __future__ import annotations

import ast
import importlib
import json
import pkgutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from typer.testing import CliRunner

import coordinator.cli
from wire.consilium.v1 import admin_pb2, identity_pb2, registry_pb2
from wire.errors import ConsiliumError
from wire.runtime.terminal import console, print_error

HOSTILE = "\x1b]8;;http://evil\x1b\\[/nope][link=evil]\x9b2J\u202e\u200b\u2028\r\n:skull:\x00\x7f"
LITERAL = "[/nope][link=evil]"
NOBODY = 9999
SOURCES = ("coordinator", "silo_agent", "wire")


def hostile(message: Message, depth: int = 0) -> Any:
    """`message` with every text hostile and every enum a number that nobody knows."""
    for field in message.DESCRIPTOR.fields:
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            _fill_message(message, field, depth)
            continue
        value = _value(field)
        if field.is_repeated:
            getattr(message, field.name).append(value)
        else:
            setattr(message, field.name, value)
    return message


def _fill_message(message: Message, field: FieldDescriptor, depth: int) -> None:
    if depth > 4 or field.message_type.GetOptions().map_entry:
        return
    if field.is_repeated:
        hostile(getattr(message, field.name).add(), depth + 1)
    else:
        hostile(getattr(message, field.name), depth + 1)


def _value(field: FieldDescriptor) -> Any:
    if field.type == FieldDescriptor.TYPE_STRING:
        return HOSTILE
    if field.type == FieldDescriptor.TYPE_BYTES:
        return HOSTILE.encode()
    if field.type == FieldDescriptor.TYPE_ENUM:
        return NOBODY
    if field.type == FieldDescriptor.TYPE_BOOL:
        return True
    return _number(field)


def _number(_field: FieldDescriptor) -> int:
    return 3


class Answer:
    """A call that ends, or streams, one hostile message."""

    def __init__(self, message: Message) -> None:
        self._message = message

    def __await__(self) -> Iterator[Any]:
        yield from ()
        return self._message

    async def __aiter__(self) -> AsyncIterator[Message]:
        yield self._message


class Stub:
    """Answers every call of a service."""

    def __init__(self, methods: Any) -> None:
        self._methods = methods

    def __getattr__(self, name: str) -> Any:
        response = GetMessageClass(self._methods[name].output_type)
        return lambda *_, **__: Answer(hostile(response()))


class Coordinator:
    """The stubs of `AdminClient`."""

    def __init__(self) -> None:
        self.admin = Stub(admin_pb2.DESCRIPTOR.services_by_name["AdminService"].methods_by_name)
        registry = registry_pb2.DESCRIPTOR.services_by_name["RegistryService"]
        self.registry = Stub(registry.methods_by_name)
        identity = identity_pb2.DESCRIPTOR.services_by_name["IdentityService"]
        self.identity = Stub(identity.methods_by_name)


TASK_YAML = """\
name: t
public_set: {digest}
rows: 3
labels: [a, b]
rounds: {{max_rounds: 1, deadline: 1m, quorum: 2}}
"""

APPS = {
    group: importlib.import_module(f"coordinator.cli.{group.replace('-', '_')}").app
    for group in ("admin", "audit", "public-set", "silo", "task")
}
ARGUMENTS: dict[tuple[str, str], list[str]] = {
    ("admin", "register"): ["x"],
    ("admin", "list"): [],
    ("admin", "revoke"): ["x", "--yes"],
    ("audit", "list"): [],
    ("audit", "verify"): [],
    ("audit", "export"): [],
    ("audit", "privacy"): [],
    ("public-set", "add"): ["x", "rows.csv"],
    ("public-set", "list"): [],
    ("public-set", "extractors"): [],
    ("public-set", "pretrain"): ["x"],
    ("silo", "register"): ["x"],
    ("silo", "list"): [],
    ("silo", "show"): ["x"],
    ("silo", "revoke"): ["x", "--ballots", "keep", "--yes"],
    ("silo", "suspend"): ["x", "--ballots", "keep"],
    ("silo", "resume"): ["x"],
    ("task", "create"): ["-f", "task.yaml"],
    ("task", "start"): ["x"],
    ("task", "pause"): ["x"],
    ("task", "list"): [],
    ("task", "show"): ["x"],
    ("task", "watch"): ["x"],
    ("task", "preview"): ["x"],
    ("task", "export"): ["x", "--out", "out"],
}
WITHOUT_REMOTE_TEXT = {
    ("admin", "join"): "shows the identity it stored, which the certificate's checks restrict",
    ("admin", "renew"): "shows a moment of a certificate it verified",
}
SHOWS_TEXT = {
    ("admin", "register"),
    ("admin", "list"),
    ("audit", "list"),
    ("audit", "export"),
    ("public-set", "list"),
    ("public-set", "add"),
    ("public-set", "extractors"),
    ("silo", "register"),
    ("silo", "list"),
    ("silo", "show"),
    ("task", "create"),
    ("task", "list"),
    ("task", "show"),
    ("task", "watch"),
}


@pytest.fixture(autouse=True)
def _answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @asynccontextmanager
    async def link(_home: Path) -> AsyncIterator[Coordinator]:
        yield Coordinator()

    for module in pkgutil.iter_modules(coordinator.cli.__path__):
        loaded = importlib.import_module(f"coordinator.cli.{module.name}")
        if hasattr(loaded, "admin_link"):
            monkeypatch.setattr(loaded, "admin_link", link)
    # Wide enough for no cell to be broken.
    monkeypatch.setattr(console, "_width", 2000)
    monkeypatch.setattr(console, "_height", 100)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.csv").write_text("a,b\n1,2\n3,4\n")
    (tmp_path / "task.yaml").write_text(TASK_YAML.format(digest="ab" * 32))


def output(group: str, command: str, *more: str) -> str:
    """What a command prints, its error included."""
    words = [command, *ARGUMENTS[group, command], "--home", "home", *more]
    result = CliRunner().invoke(APPS[group], words)
    text = result.output
    if isinstance(result.exception, ConsiliumError):
        text += f"{result.exception.sentence}\n{result.exception.hint}"
    elif not isinstance(result.exception, SystemExit | None):
        raise result.exception
    assert not (isinstance(result.exception, SystemExit) and result.exit_code == 2), text
    return text


def steering(text: str) -> set[str]:
    """Characters that do more than stand there."""
    return {each for each in text if not (each.isprintable() or each == "\n")}


def test_every_command_is_walked() -> None:
    commands = {
        (group, str(command.name or getattr(command.callback, "__name__", "")))
        for group, app in APPS.items()
        for command in app.registered_commands
    }
    assert commands == ARGUMENTS.keys() | WITHOUT_REMOTE_TEXT.keys()


@pytest.mark.parametrize(("group", "command"), ARGUMENTS)
def test_nothing_a_coordinator_says_steers_the_terminal(group: str, command: str) -> None:
    text = output(group, command)
    assert not steering(text)
    if (group, command) in SHOWS_TEXT:
        assert LITERAL in text
        assert ":skull:" in text


@pytest.mark.parametrize(
    ("group", "command"),
    [("silo", "list"), ("task", "show"), ("task", "list"), ("admin", "list"), ("audit", "list")],
    ids="-".join,
)
def test_json_means_the_same_and_steers_nothing(group: str, command: str) -> None:
    text = output(group, command, "--json")
    assert not steering(text)
    assert HOSTILE in _texts(json.loads(text))


@pytest.mark.parametrize(
    ("group", "command"),
    [("silo", "list"), ("silo", "show"), ("task", "list"), ("admin", "list")],
    ids="-".join,
)
def test_an_enum_of_a_later_release_is_said_to_be_unknown(group: str, command: str) -> None:
    assert f"unknown ({NOBODY})" in output(group, command)


@pytest.mark.parametrize(("group", "command"), ARGUMENTS)
@pytest.mark.parametrize("more", [[], ["--json"]], ids=["", "json"])
def test_a_moment_beyond_all_calendars_ends_in_a_sentence(
    group: str, command: str, more: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def beyond(field: FieldDescriptor) -> Any:
        return 2**60 if field.name == "seconds" else 3

    monkeypatch.setattr(f"{__name__}._number", beyond)
    words = [command, *ARGUMENTS[group, command], "--home", "home", *more]
    result = CliRunner().invoke(APPS[group], words)
    assert isinstance(result.exception, ConsiliumError | SystemExit | None)


def _texts(value: Any) -> set[str]:
    if isinstance(value, dict):
        return {text for each in value.values() for text in _texts(each)}
    if isinstance(value, list):
        return {text for each in value for text in _texts(each)}
    return {value} if isinstance(value, str) else set()


def test_an_error_shows_markup_as_it_was_written(capsys: pytest.CaptureFixture[str]) -> None:
    print_error(ConsiliumError("CODE[/nope]", f"What {HOSTILE}", f"Do {HOSTILE}"))
    told = capsys.readouterr().err
    assert not steering(told)
    assert told.count(LITERAL) == 2


def test_markup_stands_in_templates_only() -> None:
    """`say` and `styled` get a literal; everything else that makes text of markup is rich's and not imported."""
    wrong = []
    for path in (file for package in SOURCES for file in Path(package).rglob("*.py")):
        tree = ast.parse(path.read_text())
        wrong += [f"{path}:{line}" for line in _computed_templates(tree)]
        wrong += [f"{path}:{line}" for line in _markup_imports(tree)]
    assert not wrong


def _computed_templates(tree: ast.AST) -> Iterator[int]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = node.func
            name = called.id if isinstance(called, ast.Name) else ""
            template = node.args[0] if node.args else None
            literal = isinstance(template, ast.Constant) or (
                isinstance(template, ast.Name) and template.id.isupper()
            )
            if name in {"say", "styled"} and not literal and template is not None:
                yield node.lineno
            printing = isinstance(called, ast.Attribute) and called.attr == "print"
            if printing and isinstance(template, ast.JoinedStr):
                yield node.lineno


def _markup_imports(tree: ast.AST) -> Iterator[int]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "rich.markup":
            yield node.lineno
        if isinstance(node, ast.Attribute) and node.attr == "from_markup":
            base = node.value
            if not (isinstance(base, ast.Name) and base.id == "Text"):
                yield node.lineno

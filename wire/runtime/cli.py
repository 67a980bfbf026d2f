"""The `consilium` command: collects the commands of every package and prints errors in one way."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint, entry_points

import typer

from wire import __version__
from wire.errors import ConfigurationError, ConsiliumError
from wire.runtime.permissions import keep_private
from wire.runtime.terminal import print_error, print_traceback

GROUP = "consilium.commands"


def application(arguments: list[str]) -> typer.Typer:
    """The command line; imports only the package that `arguments` need, all of them for help and completion.

    A command with its own entry point, such as `agent.probe`, is imported without its group's other commands.
    """
    app = typer.Typer(
        name="consilium",
        help="Hospitals learn together and give nothing away but votes.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
    )

    @app.callback(invoke_without_command=True)
    def root(
        version: bool = typer.Option(False, "--version", help="Print the version and exit."),
    ) -> None:
        if version:
            typer.echo(__version__)
            raise typer.Exit

    groups: dict[str, typer.Typer] = {}
    for point in _needed(arguments):
        if point.name == _parent(point):
            groups[point.name] = _load(point)
        else:
            groups.setdefault(_parent(point), typer.Typer()).add_typer(_load(point))
    for name, group in groups.items():
        app.add_typer(group, name=name)
    return app


def _needed(arguments: list[str]) -> list[EntryPoint]:
    """The entry points that `arguments` need: one command's, a group's, or all."""
    points = sorted(entry_points(group=GROUP), key=lambda point: (_rank(point), point.name))
    group_points = [point for point in points if [_parent(point)] == arguments[:1]]
    command = ".".join(arguments[:2])
    single = [point for point in group_points if _parent(point) != point.name == command]
    return single or group_points or points


def main() -> None:
    """Runs the command with files for its owner only; a ConsiliumError is printed to standard error, with exit status 1."""
    keep_private()
    sys.excepthook = print_traceback
    try:
        application(sys.argv[1:])()
    except ConsiliumError as error:
        print_error(error)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


_ORDER = (
    "demo",
    "coordinator",
    "admin",
    "silo",
    "public-set",
    "task",
    "audit",
    "agent",
    "privacy",
    "student",
    "experiment",
)
_EXTRAS = {
    "agent.private": "trainer",
    "privacy": "trainer",
    "student": "trainer",
    "demo": "demo",
    "experiment": "all",
}


def _parent(point: EntryPoint) -> str:
    """`agent` for `agent`, `agent.private` and `agent.probe` alike, whose commands are merged."""
    return point.name.partition(".")[0]


def _rank(point: EntryPoint) -> int:
    parent = _parent(point)
    return _ORDER.index(parent) if parent in _ORDER else len(_ORDER)


def _load(point: EntryPoint) -> typer.Typer:
    try:
        commands: typer.Typer = point.load()
    except ModuleNotFoundError as error:
        missing, extra = error.name, _EXTRAS.get(point.name, "coordinator")
        commands = typer.Typer(
            help=f"Needs the {extra} extra.", invoke_without_command=True, no_args_is_help=False
        )

        @commands.callback(
            context_settings={"ignore_unknown_options": True, "allow_extra_args": True}
        )
        def unavailable() -> None:
            raise ConfigurationError(
                f"`consilium {point.name}` needs the package {missing}, which is not installed.",
                f'Install it with `pip install "consilium[{extra}]"`.',
            )

    return commands

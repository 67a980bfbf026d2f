"""`consilium privacy`: what a budget would buy (plan), what a silo.yaml promises (explain), what an ε means (odds)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from silo_agent.shared.home import SiloHome
from silo_agent.shared.home_option import Home
from wire.ballot import BallotShape, Encoding
from wire.errors import ConfigurationError
from wire.runtime.terminal import JsonFlag, console, errors, print_json, say

if TYPE_CHECKING:
    from silo_agent.trainer.explain.costs import TaskFacts

privacy = typer.Typer(
    no_args_is_help=True, help="What a privacy budget buys, and what it promises."
)

WORST_CASE = "worst_case"
CURVE = (0.5, 1.0, 2.0, 4.0, 8.0)


@privacy.command()
def plan(
    epsilon: Annotated[
        float, typer.Option(help="Budget of a silo for the whole task.", min=1e-6, max=1e6)
    ] = 1.0,
    delta: Annotated[
        float, typer.Option(help="δ of that budget; may be 0.", min=0, max=0.5)
    ] = 1e-5,
    rounds: Annotated[int, typer.Option(help="Rounds of the task.", min=1)] = 10,
    public_rows: Annotated[int, typer.Option(help="Rows of the public set.", min=1)] = 3000,
    classes: Annotated[int, typer.Option(help="Classes.", min=2, max=1000)] = 10,
    silos: Annotated[int, typer.Option(help="Silos that vote.", min=1, max=1000)] = 5,
    rows_per_silo: Annotated[int, typer.Option(help="Patients of each silo.", min=2)] = 400,
    expert_accuracy: Annotated[
        float, typer.Option(help="How often a model of one silo's rows alone is right.")
    ] = 0.8,
    features: Annotated[
        int, typer.Option(help="Independent features of a row.", min=1, max=1000)
    ] = 30,
    sensitivity: Annotated[
        str,
        typer.Option(
            metavar="worst_case|N",
            help="xor: labels one patient can change; a number is an assumption and makes ε an estimate.",
        ),
    ] = WORST_CASE,
    certainty_epsilon: Annotated[
        float,
        typer.Option(help="FEDAUX: what certainties may cost, once.", min=1e-6, max=1e6),
    ] = 0.1,
    seed: Annotated[
        int, typer.Option(help="Which silos are made up; the noise is drawn anew every time.")
    ] = 0,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer repetitions.")] = False,
    curve: Annotated[
        bool, typer.Option("--curve", help="Also for ε = 0.5, 1, 2, 4 and 8.")
    ] = False,
    plot: Annotated[
        Path | None, typer.Option(help="Write a plot to this .png, .svg or .pdf file.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Simulate every mechanism on made data: noise, rows answered, expected accuracy, what to take."""
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    from silo_agent.trainer.planner.plan import Question
    from silo_agent.trainer.planner.simulate import QUICK, USUAL, simulate, simulate_budgets
    from silo_agent.trainer.planner.view import (
        Progress,
        check_plot,
        print_curve,
        print_plan,
        write_plot,
    )
    from wire.privacy.randomness import SecureBits

    question = Question(
        epsilon=epsilon,
        delta=delta,
        rounds=rounds,
        public_rows=public_rows,
        classes=classes,
        silos=silos,
        rows_per_silo=rows_per_silo,
        expert_accuracy=expert_accuracy,
        features=features,
        changed_rows=_changed_rows(sensitivity, public_rows),
        certainty_epsilon=certainty_epsilon,
    )
    if plot is not None:
        check_plot(plot)
    effort = QUICK if quick else USUAL
    # Progress goes to standard error: standard output is the table, or JSON alone.
    # The models are small: more threads than one only get in each other's way.
    with Progress(errors) as progress, threadpool_limits(1):
        found = simulate(question, effort, seed, SecureBits(), progress)
        steps = (
            simulate_budgets(question, CURVE, QUICK, seed, SecureBits(), progress) if curve else ()
        )
    if plot is not None:
        write_plot(found, plot, steps)
    if as_json:
        print_json({**found.as_json(), "curve": [step.as_json() for step in steps]})
        return
    print_plan(found, console)
    if steps:
        print_curve(steps, console)
    if plot is not None:
        say("Plot written to {}.", plot)


@privacy.command()
def odds(
    epsilon: Annotated[
        list[float] | None,
        typer.Option(help="As often as needed; default: 1, 4 and 8.", min=1e-6, max=700),
    ] = None,
    delta: Annotated[float, typer.Option(help="δ.", min=0, max=0.5)] = 1e-5,
    as_json: JsonFlag = False,
) -> None:
    """Say what ε means: how far a suspicion about one patient can move, at most, except with probability δ."""
    from silo_agent.trainer.explain.odds import Odds, as_markdown

    lines = [Odds(value, delta) for value in epsilon or (1.0, 4.0, 8.0)]
    if as_json:
        print_json([line.cells() for line in lines])
        return
    typer.echo(as_markdown(lines))


@privacy.command()
def explain(
    home: Home,
    settings: Annotated[
        Path | None, typer.Option(help="A silo.yaml elsewhere than in the silo's folder.")
    ] = None,
    task: Annotated[
        str, typer.Option(help="For a task laid before this silo: its name or digest.")
    ] = "",
    rows: Annotated[int, typer.Option(help="Or for a task with so many public rows …", min=0)] = 0,
    classes: Annotated[int, typer.Option(help="… so many classes …", min=0)] = 0,
    rounds: Annotated[int, typer.Option(help="… and so many rounds.", min=0)] = 0,
    as_json: JsonFlag = False,
) -> None:
    """Print what a silo.yaml promises, on a page that a data protection officer can sign."""
    from silo_agent.trainer.explain.costs import costs_of, encoding_for
    from silo_agent.trainer.explain.explain import explain as explained
    from silo_agent.trainer.explain.view import print_explanation
    from silo_agent.trainer.settings import read_settings

    folder = SiloHome(home)
    file = settings or folder.settings_file
    silo = read_settings(file)
    facts = _facts(folder, task, rows, classes, rounds, encoding_for(silo.privacy.mechanism))
    costs = None if facts is None else costs_of(silo.privacy, silo.data.patient_id, facts)
    page = explained(silo.privacy, silo.data.patient_id, facts, costs)
    if as_json:
        print_json({"settings": str(file), **page.as_json()})
        return
    print_explanation(page, file, console)


def _changed_rows(sensitivity: str, public_rows: int) -> int | None:
    if sensitivity == WORST_CASE:
        return None
    if not sensitivity.isdecimal() or not 1 <= int(sensitivity) <= public_rows:
        raise ConfigurationError(
            f"--sensitivity {sensitivity} is neither {WORST_CASE} nor a number of labels.",
            f"Give a number from 1 to {public_rows}, the rows of the public set, or leave it out.",
        )
    return int(sensitivity)


def _facts(
    home: SiloHome, task: str, rows: int, classes: int, rounds: int, encoding: Encoding
) -> TaskFacts | None:
    # Brings dp-accounting along, a second that `--help` need not wait.
    from silo_agent.trainer.explain.costs import TaskFacts

    given = (rows, classes, rounds)
    if task and any(given):
        raise ConfigurationError(
            "--task already says how many rows, classes and rounds there are.",
            "Give either --task, or --rows, --classes and --rounds.",
        )
    if task:
        from silo_agent.trainer.approval.view import find, seen
        from silo_agent.trainer.methods.registry import method_for
        from silo_agent.trainer.settings import read_settings

        definition = find(seen(home, read_settings(home.settings_file).criteria), task).definition
        return TaskFacts(
            definition.shape,
            definition.rounds.max_rounds,
            definition.name,
            method_for(definition),
        )
    if not any(given):
        return None
    if rows < 1 or classes < 2 or rounds < 1:
        raise ConfigurationError(
            "What a task costs depends on its rows, its classes and its rounds.",
            "Give all three of --rows, --classes (at least 2) and --rounds, or none.",
        )
    return TaskFacts(BallotShape(rows, classes, encoding), rounds)

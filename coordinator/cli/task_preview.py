"""`consilium task preview`: what another rule would have published on the ballots of a closed round."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import typer
from rich.table import Table

from coordinator.cli.agreement_view import agreement_rows, lowest
from coordinator.cli.connection import AdminClient, Home, admin_link, run
from wire.consilium.v1 import admin_pb2
from wire.errors import ConfigurationError
from wire.runtime.configuration import checked
from wire.runtime.terminal import (
    JsonFlag,
    as_dict,
    cell,
    console,
    print_json,
    print_table,
    say,
)
from wire.task.consensus_policy import ConsensusPolicy, Credibility, RuleName
from wire.task.definition import TaskDefinition

_SHOWN_CLASSES = 6


class RulePreview(NamedTuple):
    """A policy, and what it would have published."""

    policy: ConsensusPolicy
    found: admin_pb2.PreviewConsensusResponse


def preview(
    name: Annotated[str, typer.Argument(help="The task's name.")],
    home: Home,
    round_number: Annotated[
        int | None,
        typer.Option("--round", min=1, help="A closed round.", show_default="the latest"),
    ] = None,
    rule: Annotated[RuleName | None, typer.Option(help="The rule to try.")] = None,
    min_share: Annotated[
        float | None, typer.Option(help="qualified_majority: share the winner needs.")
    ] = None,
    threshold: Annotated[
        float | None, typer.Option(help="per_class_threshold: share a class must exceed.")
    ] = None,
    trim: Annotated[
        float | None, typer.Option(help="trimmed: share of the silos left out at most.")
    ] = None,
    credibility: Annotated[
        Credibility | None, typer.Option(help="Where a silo's weight comes from.")
    ] = None,
    weight: Annotated[
        list[str] | None, typer.Option(help="SILO=3: what a silo counts; repeat for several.")
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Compare every rule that can read these ballots.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Show what a rule would have published on the ballots of the last round; nothing is published.

    What is not given is as in the task.
    """
    if every and rule is not None:
        raise ConfigurationError(
            "--all tries every rule; --rule asks for one.", "Leave one of them out."
        )
    options: dict[str, Any] = {"min_share": min_share, "threshold": threshold, "trim": trim}
    options |= {"credibility": credibility, "weights": weights(weight or ())}
    given = {key: value for key, value in options.items() if value not in (None, {})}

    async def call() -> tuple[TaskDefinition, list[RulePreview]]:
        async with admin_link(home) as link:
            task = (await link.admin.GetTask(admin_pb2.GetTaskRequest(name=name))).task
            definition = TaskDefinition.from_proto(task.definition)
            policies = (
                fitting(definition, given)
                if every
                else [policy(definition.consensus, rule or definition.consensus.rule, given)]
            )
            return definition, [
                await _previewed(link, name, round_number or 0, each) for each in policies
            ]

    definition, previews = run(call())
    if as_json:
        print_json(
            {
                "task": name,
                "published_by": definition.consensus.rule,
                "previews": previews_json(previews),
            }
        )
        return
    _print_previews(definition, previews, every=every)


def _print_previews(
    definition: TaskDefinition, previews: Sequence[RulePreview], *, every: bool
) -> None:
    say(
        "Round {} of [bold]{}[/], {} rows, published by {}",
        previews[0].found.round,
        definition.name,
        definition.rows,
        definition.consensus.rule,
    )
    console.print(comparison([preview_row(each, definition.labels) for each in previews]))
    if not every:
        print_table(
            "Agreement with it",
            agreement_rows(previews[0].found.agreement),
            empty="Nobody was compared with it.",
        )
    elif all(each.policy.rule is not RuleName.WEIGHTED for each in previews):
        say("weighted is left out: give --weight or --credibility")


def weights(given: Iterable[str]) -> dict[str, int]:
    """`north=3` … by silo; ConfigurationError for anything else."""
    found = {}
    for text in given:
        silo, _, number = text.partition("=")
        if not silo or not number.isdecimal():
            raise ConfigurationError(
                f"--weight {text}: this is not a silo and its weight.",
                "Write for example --weight north=3.",
            )
        found[silo] = int(number)
    return found


def policy(own: ConsensusPolicy, rule: RuleName, given: dict[str, Any]) -> ConsensusPolicy:
    """`rule` with what was given; the rest as the task has it. ConfigurationError if they do not fit."""
    values: dict[str, Any] = {
        "rule": rule,
        "min_share": own.min_share,
        "threshold": own.threshold,
        "trim": own.trim,
    }
    if rule.weighs_silos and not {"credibility", "weights"} & given.keys():
        values |= {"credibility": own.credibility, "weights": own.weights}
    return checked({**values, **given}, ConsensusPolicy, "The options")


def fitting(task: TaskDefinition, given: dict[str, Any]) -> list[ConsensusPolicy]:
    """A policy for every rule that reads the task's ballots; `weighted` only if weights are known."""
    weighing = {"credibility", "weights"} & given.keys()
    known = bool(weighing) or task.consensus.credibility is not Credibility.EQUAL
    plain = {key: value for key, value in given.items() if key not in weighing}
    return [
        policy(task.consensus, rule, given if rule.weighs_silos else plain)
        for rule in RuleName
        if task.encoding in rule.encodings and (known or rule is not RuleName.WEIGHTED)
    ]


def preview_row(preview: RulePreview, labels: Sequence[str]) -> dict[str, object]:
    """A rule in the comparison."""
    found = preview.found
    classes = [
        f"{label} {count}" for label, count in zip(labels, found.labelled_rows, strict=False)
    ]
    more = " …" if len(classes) > _SHOWN_CLASSES else ""
    return {
        "rule": rule_words(preview.policy),
        "labelled": sum(found.labelled_rows),
        "abstained": found.abstained_rows,
        "differs": found.differing_rows,
        "rows by class": ", ".join(classes[:_SHOWN_CLASSES]) + more,
        "lowest agreement": lowest(found.agreement),
    }


def comparison(rows: Sequence[Mapping[str, object]]) -> Table:
    """Rules below each other; cells are wrapped between words, for no name may be cut short."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in rows[0]:
        words = " ".join(cell(row[column]).plain for row in rows).split()
        table.add_column(column, min_width=max(map(len, words)))
    for row in rows:
        table.add_row(*(cell(value) for value in row.values()))
    return table


def rule_words(policy: ConsensusPolicy) -> str:
    """`trimmed 20%`: a rule with the parameter it heeds."""
    match policy.rule:
        case RuleName.QUALIFIED_MAJORITY:
            return f"{policy.rule} {policy.min_share:.3g}"
        case RuleName.PER_CLASS_THRESHOLD:
            return f"{policy.rule} {policy.threshold:.3g}"
        case RuleName.TRIMMED:
            return f"{policy.rule} {policy.trim:.3g}"
        case RuleName.WEIGHTED:
            return f"{policy.rule} by {policy.credibility}"
        case RuleName.MAJORITY | RuleName.CERTAINTY_WEIGHTED | RuleName.STAPLE:
            return str(policy.rule)


def previews_json(previews: Iterable[RulePreview]) -> list[dict[str, Any]]:
    """The same for scripts."""
    return [
        {"policy": each.policy.model_dump(mode="json"), **as_dict(each.found)} for each in previews
    ]


async def _previewed(
    link: AdminClient, task: str, round_number: int, policy: ConsensusPolicy
) -> RulePreview:
    request = admin_pb2.PreviewConsensusRequest(
        task=task, round=round_number, policy=policy.to_proto()
    )
    return RulePreview(policy, await link.admin.PreviewConsensus(request))

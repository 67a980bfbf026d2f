"""`consilium experiment`: the measurements behind the documents, each one command."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from experiments.papers import EXPERIMENTS, find
from experiments.terminal import console
from wire.errors import ConfigurationError

if TYPE_CHECKING:
    from experiments.data import Sizes

experiment = typer.Typer(
    help="Measure what the documents claim: tables, plots and the command that made them.",
    no_args_is_help=True,
)

NameT = TypeVar("NameT", bound=StrEnum)

Data = Annotated[
    Path | None,
    typer.Option(help="Folder of data sets, one folder each: adult/adult.csv.gz and so on."),
]
Out = Annotated[
    Path, typer.Option(help="Folder for CSV, Markdown and plot; a run that stopped goes on there.")
]
Quick = Annotated[bool, typer.Option("--quick", help="A first look: few seeds, few values of ε.")]
Look = Annotated[
    bool, typer.Option("--quick", help="A first look: smaller, into files of its own.")
]
Seeds = Annotated[int, typer.Option(help="Splits to average over.", min=1)]
Workers = Annotated[int | None, typer.Option(help="Processes; default one per core.", min=1)]
Dataset = Annotated[
    str, typer.Option(help="digits, breast-cancer, adult, adult-lean or fashion-mnist.")
]
Silos = Annotated[int, typer.Option(help="Hospitals.", min=2)]
Rows = Annotated[int | None, typer.Option(help="Private rows per silo; default by data set.")]
Public = Annotated[int | None, typer.Option(help="Rows of the public set; default by data set.")]
Epsilons = Annotated[str, typer.Option(help="Whole-run budgets, with commas between.")]
Delta = Annotated[float, typer.Option(help="δ of every ε.")]


@experiment.command("privacy-utility")
def privacy_utility(
    dataset: Dataset = "digits",
    silos: Silos = 5,
    rows_per_silo: Rows = None,
    public_rows: Public = None,
    test_rows: Annotated[int | None, typer.Option(help="Test rows; default by data set.")] = None,
    alpha: Annotated[
        float | None, typer.Option(help="Dirichlet concentration of labels; none splits evenly.")
    ] = None,
    epsilons: Epsilons = "0.5,1,2,4,8",
    delta: Delta = 1e-5,
    seeds: Annotated[int, typer.Option(help="Splits to average over.", min=1)] = 5,
    rounds: Annotated[int, typer.Option(help="Rounds of the task.", min=1)] = 5,
    learner: Annotated[str, typer.Option(help="Every silo's own learner.")] = "logistic_regression",
    methods: Annotated[str, typer.Option(help="Which to compare, with commas between.")] = "",
    quick: Quick = False,
    data: Data = None,
    out: Out = Path("experiment-report"),
    workers: Workers = None,
) -> None:
    """Accuracy at home versus whole-run ε: local-only, noise-free, and each mechanism."""
    from experiments.harness import Table
    from experiments.privacy import utility, utility_report

    sizes = _default_sizes(dataset, data)
    setting = utility.Setting(
        dataset=dataset,
        silos=silos,
        rows_per_silo=rows_per_silo or sizes.private,
        public_rows=public_rows or sizes.public,
        test_rows=test_rows or sizes.test,
        alpha=alpha,
        learner=learner,
        rounds=rounds,
        delta=delta,
    )
    chosen = _names(utility.Method, methods) or utility.DEFAULT_METHODS
    budgets = (1.0, 8.0) if quick else _numbers(epsilons)
    wanted = utility.cells(setting, chosen, budgets, min(seeds, 2) if quick else seeds)
    table = Table(out / "privacy-utility.csv", utility.Cell, utility.Result)
    work = partial(utility.measure, folder=data)
    _run(table, wanted, work, workers, partial(utility_report.write, out=out))


@experiment.command("vulnerability")
def vulnerability(
    dataset: Dataset = "digits",
    silos: Silos = 3,
    rows_per_silo: Annotated[
        int | None, typer.Option(help="Rows a silo holds; there are twice as many candidates.")
    ] = None,
    public_rows: Public = None,
    rounds: Annotated[int, typer.Option(help="Messages of the victim.", min=1)] = 3,
    steps: Annotated[int, typer.Option(help="Training steps between two messages.", min=1)] = 100,
    hidden: Annotated[int, typer.Option(help="Width of the hidden layer.", min=1)] = 64,
    shadows: Annotated[
        int, typer.Option(help="Federations the attacker runs himself.", min=8)
    ] = 64,
    victims: Annotated[int, typer.Option(help="Federations attacked.", min=2)] = 32,
    epsilons: Epsilons = "1,8",
    delta: Delta = 1e-5,
    seeds: Annotated[int, typer.Option(help="Splits to average over.", min=1)] = 3,
    messages: Annotated[str, typer.Option(help="Which to attack, with commas between.")] = "",
    quick: Quick = False,
    data: Data = None,
    out: Out = Path("experiment-report"),
    workers: Workers = None,
) -> None:
    """Membership inference against what was sent: weights, soft and hard labels, each mechanism."""
    from experiments.harness import Table
    from experiments.privacy import vulnerability as attacked
    from experiments.privacy import vulnerability_report

    sizes = _default_sizes(dataset, data)
    setting = attacked.Setting(
        dataset=dataset,
        silos=silos,
        rows_per_silo=rows_per_silo or min(100, sizes.private),
        public_rows=public_rows or min(400, sizes.public),
        rounds=rounds,
        steps=steps,
        hidden=hidden,
        shadows=min(shadows, 24) if quick else shadows,
        victims=min(victims, 12) if quick else victims,
        delta=delta,
    )
    chosen = _names(attacked.Message, messages) or tuple(attacked.Message)
    budgets = _numbers(epsilons)
    wanted = attacked.cells(setting, chosen, budgets, 1 if quick else seeds)
    table = Table(out / "vulnerability.csv", attacked.Cell, attacked.Result)
    work = partial(attacked.measure, folder=data)
    _run(table, wanted, work, workers, partial(vulnerability_report.write, out=out))


def _run_paper(
    name: str, data: Path | None, seeds: int, quick: bool, out: Path, workers: int | None
) -> int:
    from experiments.papers.run import run_experiment

    return run_experiment(
        find(name), console, seeds=seeds, quick=quick, folder=data, out=out, workers=workers
    )


def _add_command(name: str, what: str) -> None:
    @experiment.command(name, help=what)
    def _table(
        data: Data = None,
        seeds: Seeds = 3,
        quick: Look = False,
        out: Out = Path("experiment-report"),
        workers: Workers = None,
    ) -> None:
        failed = _run_paper(name, data, seeds, quick, out, workers)
        if failed:
            console.print(f"{failed} runs failed; the same command tries them again.")
            raise typer.Exit(1)


for _name, _what in EXPERIMENTS.items():
    _add_command(_name, _what)


@experiment.command("papers")
def papers(
    data: Data = None,
    seeds: Seeds = 3,
    quick: Look = False,
    out: Out = Path("experiment-report"),
    workers: Workers = None,
) -> None:
    """Every table of the papers, one after the other; hours."""
    failed = {name: _run_paper(name, data, seeds, quick, out, workers) for name in EXPERIMENTS}
    if any(failed.values()):
        names = ", ".join(name for name, count in failed.items() if count)
        console.print(f"Runs of {names} failed; the same command tries them again.")
        raise typer.Exit(1)


@experiment.command("results")
def results(
    source: Annotated[Path, typer.Option("--from", help="Folder the experiments wrote to.")] = Path(
        "experiment-report"
    ),
    docs: Annotated[Path, typer.Option("--to", help="Folder of the documents.")] = Path("docs"),
) -> None:
    """Gathers finished tables into docs/results and lists every target in docs/results.md."""
    from experiments.papers.results import gather

    index, found = gather(EXPERIMENTS, find, source, docs)
    console.print(f"{index}: {', '.join(found) or 'nothing new'}")


@experiment.command("robustness")
def robustness(
    seeds: Seeds = 10, quick: Quick = False, out: Out = Path("experiment-report")
) -> None:
    """How right each rule is while one of five or two of ten silos attack."""
    from experiments.robustness import report

    _end(report(out, seeds, quick, console))


@experiment.command("cross-fit")
def cross_fit(seeds: Seeds = 3, quick: Quick = False, out: Out = Path("experiment-report")) -> None:
    """How right the consensus is after each round, cross-fitted and not."""
    from experiments.cross_fit import report

    _end(report(out, seeds, quick, console))


@experiment.command("certainty")
def certainty(
    data: Data = None,
    seeds: Seeds = 3,
    quick: Quick = False,
    out: Out = Path("experiment-report"),
) -> None:
    """What noisy certainties bring, by rows per silo and ε; digits alone without --data."""
    from experiments.certainty import report

    _end(report(out, seeds, quick, console, data))


@experiment.command("extractors")
def extractors(
    data: Annotated[Path, typer.Option(help="The folder with fashion-mnist/.")],
    seeds: Seeds = 2,
    quick: Quick = False,
) -> None:
    """Whether what the public rows teach pays: few labels on FashionMNIST, few classes per silo on digits."""
    from experiments.data import require_files
    from experiments.extractors import report

    require_files("fashion-mnist", data)
    report(data, seeds, quick)


def _end(failures: Sequence[Any]) -> None:
    if failures:
        console.print(f"{len(failures)} runs failed; the same command tries them again.")
        raise typer.Exit(1)


def _run(
    table: Any,
    cells: Sequence[Any],
    work: Callable[[Any], Any],
    workers: int | None,
    write: Callable[[Any], tuple[Path, Path]],
) -> None:
    """Computes, writes page and plot from all the table holds, and says where; exit 1 if a cell failed."""
    from experiments.harness import run

    console.print(f"[dim]{' '.join(['consilium', *sys.argv[1:]])}[/]")
    failures = run(table, cells, work, console, workers=workers, title="runs")
    known = table.read()
    if known:
        page, plot = write(known)
        console.print(f"Numbers: {table.path}  Table: {page}  Plot: {plot}")
    if failures:
        console.print(
            f"{len(failures)} of {len(cells)} runs failed; the same command tries them again."
        )
        raise typer.Exit(1)


def _default_sizes(dataset: str, data: Path | None) -> Sizes:
    """How a data set is split if no option says otherwise; ConfigurationError if it is not there."""
    from experiments.data import DEFAULT_SIZES, require_files

    if dataset not in DEFAULT_SIZES:
        raise ConfigurationError(
            f"There is no data set {dataset!r}.", f"Choose one of {', '.join(DEFAULT_SIZES)}."
        )
    require_files(dataset, data)
    return DEFAULT_SIZES[dataset]


def _numbers(text: str) -> tuple[float, ...]:
    try:
        found = tuple(sorted({float(part) for part in text.split(",")}))
    except ValueError:
        found = ()
    if not found or found[0] <= 0:
        raise ConfigurationError(
            f"--epsilons {text} is no list of numbers above 0.", "Write for example 0.5,1,2."
        )
    return found


def _names(kind: type[NameT], text: str) -> tuple[NameT, ...]:
    given = [part.strip() for part in text.split(",") if part.strip()]
    for name in given:
        if name not in list(kind):
            raise ConfigurationError(f"There is no {name!r} here.", f"Choose of {', '.join(kind)}.")
    return tuple(one for one in kind if one in given)

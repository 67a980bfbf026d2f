"""Change one thing in one module, run the tests that run that line, and see whether one of them fails.

    python tests/mutants.py REPORT [AREA …] [--share 0.25] [--again]

cosmic-ray makes the mutants; its own runner starts an interpreter for each, which for our imports takes longer than
the tests. Here every mutant runs in a fork of a process that has loaded whatever does not import the module: the fork
sees the changed source through an import hook, so no file is ever changed. Areas, operators and tests: `mutants.toml`.

REPORT is a JSON Lines file. A mutant that is in it as killed is not run again while its module stays as it is;
with --again survivors are, which is how a new test is tried.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import gc
import hashlib
import importlib
import importlib.abc
import importlib.machinery
import json
import math
import os
import random
import re
import signal
import sys
import tempfile
import time
import tomllib
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, TextIO

import coverage
import grimp
import pytest
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator

ROOT = Path(__file__).parents[1]
PACKAGES = ("coordinator", "experiments", "silo_agent", "wire")
SHARED_STATE = re.compile(r"scope=\"(module|session)\"|^@cache", re.MULTILINE)
"""Where a test file keeps results between tests, who ran a line first says little: its tests go together."""

MEASURES = re.compile("benchmark")
"""Names of tests that measure the machine too: they are left out, a busy machine is no killer."""


@dataclass(frozen=True)
class Mutant:
    """One change of one module."""

    area: str
    module: str
    source: str
    """Digest of the unchanged module."""
    operator: str
    occurrence: int
    line: int
    before: str
    after: str

    @property
    def key(self) -> tuple[str, str, str, int]:
        return (self.module, self.source, self.operator, self.occurrence)


@dataclass
class Baseline:
    """How long each test takes, and which tests run which lines ("module:line") of an area."""

    seconds: dict[str, float] = field(default_factory=dict)
    runs: dict[str, list[str]] = field(default_factory=dict)
    loaded: list[str] = field(default_factory=list)
    """Modules that the tests import, tests excluded."""

    def tests(self, mutant: Mutant) -> list[str]:
        """Tests that may notice a change of this line, the fastest first.

        Of a line that an import runs these are all, those first that run anything of the module: who else imports
        a constant is not known here.
        """
        chosen = self.runs.get(f"{mutant.module}:{mutant.line}", [""])
        first = set(chosen)
        if "" in chosen:
            lines = [key for key in self.runs if key.startswith(f"{mutant.module}:")]
            first = {name for line in lines for name in self.runs[line]}
            chosen = list(self.seconds)
        together = {name.split("::")[0] for name in chosen if _keeps_state(name.split("::")[0])}
        wanted = set(chosen) | {one for one in self.seconds if one.split("::")[0] in together}
        order = {one: (one not in first, seconds) for one, seconds in self.seconds.items()}
        return sorted(wanted & set(order), key=lambda name: order[name])


def _keeps_state(file: str) -> bool:
    return SHARED_STATE.search((ROOT / file).read_text(encoding="utf-8")) is not None


# -- mutants ------------------------------------------------------------------------------------------------


def mutants(area: str, module: Path, operators: list[str]) -> Iterator[Mutant]:
    """All mutants of a module that could be noticed."""
    code = module.read_text(encoding="utf-8")
    tree, unseen = get_ast(code), list(_unseen(ast.parse(code)))
    source = hashlib.sha256(code.encode()).hexdigest()[:12]
    for name in operators:
        operator = get_operator(f"core/{name}")()
        places = [at for node in ast_nodes(tree) for at in operator.mutation_positions(node)]
        for occurrence, (start, _) in enumerate(places):
            if any(first <= start < last for first, last in unseen):
                continue
            changed = mutate_code(code, operator, occurrence)
            if changed is None or changed == code:
                continue
            before, after = _difference(code, changed)
            path = str(module.relative_to(ROOT))
            yield Mutant(area, path, source, name, occurrence, start[0], before, after)


def _unseen(tree: ast.Module) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Where the annotations and the decorators' arguments are; the decorators themselves are not meant."""
    for node in ast.walk(tree):
        parts: list[ast.expr | None] = []
        if isinstance(node, ast.AnnAssign | ast.arg):
            parts.append(node.annotation)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            parts.append(node.returns)
        elif isinstance(node, ast.ClassDef):
            calls = [one for one in node.decorator_list if isinstance(one, ast.Call)]
            parts += [word.value for call in calls for word in call.keywords]
        for part in parts:
            if part is not None and part.end_lineno is not None and part.end_col_offset is not None:
                yield (part.lineno, part.col_offset), (part.end_lineno, part.end_col_offset)


def _difference(code: str, changed: str) -> tuple[str, str]:
    before, after = code.splitlines(), changed.splitlines()
    first = next((i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), 0)
    extra = len(after) - len(before)
    return before[first].strip(), " ".join(
        one.strip() for one in after[first : first + 1 + max(0, extra)]
    )


# -- running ------------------------------------------------------------------------------------------------


class _Changed(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Serves one module from a changed source."""

    def __init__(self, module: str, code: str) -> None:
        self.path = ROOT / module
        self.name = module.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        self.code = code

    def find_spec(
        self, name: str, path: object, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self.name:
            return None
        return importlib.machinery.ModuleSpec(name, self, origin=str(self.path))

    def exec_module(self, module: ModuleType) -> None:
        module.__file__ = str(self.path)
        exec(compile(self.code, str(self.path), "exec"), module.__dict__)


class _Chosen:
    """Keeps the named tests only, in the named order; says at the end which test failed."""

    def __init__(self, names: list[str]) -> None:
        self.order = {name: index for index, name in enumerate(names)}
        self.failed = ""

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = sorted(
            (one for one in items if one.nodeid in self.order),
            key=lambda one: self.order[one.nodeid],
        )

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed = report.nodeid


class _Measured:
    """Takes the time of every test and notes which lines of the module it runs."""

    def __init__(self, measuring: coverage.Coverage) -> None:
        self.measuring = measuring
        self.seconds: dict[str, float] = {}
        self.failed: list[str] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        self.measuring.switch_context(item.nodeid)
        result = yield
        self.measuring.switch_context("")
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if MEASURES.search(report.nodeid) is None:
            self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0) + report.duration
        if report.failed:
            self.failed.append(report.nodeid)


def _in_a_fork(work: Callable[[], Any], seconds: float, *, quiet: bool = True) -> Any:
    """What `work` returns in a fork, as JSON; None if it took longer or died."""
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder, "answer")
        child = os.fork()
        if child == 0:
            os.setsid()
            if quiet:
                log = os.open(Path(folder, "log"), os.O_WRONLY | os.O_CREAT)
                os.dup2(log, 1)
                os.dup2(log, 2)
            try:
                answer.write_text(json.dumps(work()), encoding="utf-8")
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                os._exit(0)
        end = time.monotonic() + seconds
        try:
            while os.waitpid(child, os.WNOHANG) == (0, 0):
                if time.monotonic() > end:
                    return None
                time.sleep(0.01)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(child, 0)
        return json.loads(answer.read_text(encoding="utf-8")) if answer.exists() else None


def _pytest(files: list[str], plugin: object) -> int:
    from hypothesis import Phase, settings

    # The same examples for every mutant, and none made smaller: that one fails is all we ask.
    settings.register_profile(
        "mutants",
        derandomize=True,
        database=None,
        deadline=None,
        phases=(Phase.explicit, Phase.generate),
    )
    settings.load_profile("mutants")
    # Looking for plugins and collecting garbage takes longer than most tests.
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    plugins = (
        "pytest_timeout",
        "_hypothesis_pytestplugin",
        "no:cacheprovider",
        "no:unraisableexception",
    )
    flags = ["-x", "-q", "--no-header", "--no-summary", "--tb=no"]
    return int(pytest.main([*flags, *(f"-p{one}" for one in plugins), *files], plugins=[plugin]))


def baseline(modules: list[Path], files: list[str]) -> Baseline:
    """Run all tests of an area on its unchanged modules."""

    def work() -> dict[str, Any]:
        included = list(map(str, modules))
        measuring = coverage.Coverage(data_file=None, config_file=False, include=included)
        plugin = _Measured(measuring)
        with measuring.collect():
            _pytest(files, plugin)
        data = measuring.get_data()
        found = {
            f"{module.relative_to(ROOT)}:{line}": names
            for module in modules
            for line, names in data.contexts_by_lineno(str(module)).items()
        }
        places = {name: getattr(one, "__file__", None) for name, one in sys.modules.items()}
        ours = str(ROOT / "tests")
        loaded = [name for name, file in places.items() if file and not file.startswith(ours)]
        return {"seconds": plugin.seconds, "runs": found, "loaded": loaded, "failed": plugin.failed}

    told = _in_a_fork(work, 900)
    if told is None or told["failed"]:
        raise SystemExit(f"tests fail on unchanged modules: {told and told['failed']}")
    return Baseline(told["seconds"], told["runs"], told["loaded"])


def load_around(module: str, names: list[str]) -> None:
    """Import the named modules but those that import `module`, directly or by others."""
    target = module.removesuffix(".py").replace("/", ".")
    graph, depending, new = grimp.build_graph(*PACKAGES), set[str](), {target}
    while new:
        depending |= new
        # Who imports a module of a package runs the package's own imports too.
        new |= {one for one in graph.modules if any(one.startswith(f"{name}.") for name in new)}
        new |= {one for name in new for one in graph.find_modules_that_directly_import(name)}
        new -= depending
    for name in names:
        if name not in depending:
            with contextlib.suppress(Exception):
                importlib.import_module(name)
    if target in sys.modules:
        raise SystemExit(f"{target} is loaded: its mutants would not be seen")
    gc.freeze()


def outcome(mutant: Mutant, known: Baseline) -> tuple[str, str]:
    """("killed", by which test), ("killed", "time") or ("survived", how many tests ran)."""
    names = known.tests(mutant)
    # One file after the other: most mutants die in the first, and the others need not be imported.
    files = list(dict.fromkeys(name.split("::")[0] for name in names))
    code = (ROOT / mutant.module).read_text(encoding="utf-8")
    changed = mutate_code(code, get_operator(f"core/{mutant.operator}")(), mutant.occurrence)

    def work() -> dict[str, Any]:
        sys.meta_path.insert(0, _Changed(mutant.module, changed))
        for file in files:
            plugin = _Chosen(names)
            code = _pytest([file], plugin)
            if code:
                break
        return {"code": code, "failed": plugin.failed}

    told = _in_a_fork(work, 20 + 4 * sum(known.seconds[name] for name in names))
    if told is None:
        return "killed", "time"
    if told["code"] == 0:
        return "survived", f"{len(names)} tests"
    return "killed", told["failed"] or "import"


def run(todo: list[Mutant], known: Baseline, report: TextIO) -> list[dict[str, Any]]:
    """Run mutants of one module, to be called in a fork; each is written to `report` when it is known."""
    load_around(todo[0].module, known.loaded)
    found = []
    for one in todo:
        began = time.monotonic()
        what, by = outcome(one, known)
        told = {"outcome": what, "by": by, "seconds": round(time.monotonic() - began, 1)}
        found.append(asdict(one) | told)
        report.write(json.dumps(found[-1]) + "\n")
        report.flush()
        if what == "survived":
            print(
                f"{one.module}:{one.line} {one.operator}\n  - {one.before}\n  + {one.after}",
                flush=True,
            )
    return found


# -- all of it ----------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("report", type=Path)
    parser.add_argument("areas", nargs="*")
    parser.add_argument("--module", default="", help="only modules whose path contains this")
    parser.add_argument("--share", type=float, default=1.0, help="of the mutants, drawn")
    parser.add_argument("--again", action="store_true", help="run survivors again")
    asked = parser.parse_args()
    os.chdir(ROOT)
    sys.path[:0] = [str(ROOT)]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    config = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    done = {}
    if asked.report.exists():
        for line in asked.report.read_text(encoding="utf-8").splitlines():
            one = json.loads(line)
            done[one["module"], one["source"], one["operator"], one["occurrence"]] = one
    table: dict[str, Counter[str]] = {}
    with asked.report.open("a", encoding="utf-8") as report:
        for area in config["area"]:
            if asked.areas and area["name"] not in asked.areas:
                continue
            files = [f"tests/unit/test_{name}.py" for name in area["tests"]]
            modules = sorted(path for glob in area["modules"] for path in ROOT.glob(glob))
            known: Baseline | None = None
            for module in modules:
                if asked.module not in str(module):
                    continue
                every = list(mutants(area["name"], module, config["operators"]))
                drawn = list(every)
                random.Random(1).shuffle(drawn)
                todo = [
                    one
                    for one in drawn[: round(asked.share * len(every))]
                    if one.key not in done
                    or (asked.again and done[one.key]["outcome"] == "survived")
                ]
                if todo:
                    known = known or baseline(modules, files)
                    found = _in_a_fork(partial(run, todo, known, report), math.inf, quiet=False)
                    done |= {one.key: told for one, told in zip(todo, found, strict=True)}
                count = Counter(done[one.key]["outcome"] for one in every if one.key in done)
                if every:
                    table[str(module.relative_to(ROOT))] = count | Counter({"of": len(every)})
                    print(
                        f"## {module.relative_to(ROOT)} {dict(count)} of {len(every)}", flush=True
                    )
    print("| module | mutants | run | killed | left |\n|---|---|---|---|---|")
    for path, count in table.items():
        ran = count["killed"] + count["survived"]
        print(f"| `{path}` | {count['of']} | {ran} | {count['killed']} | {count['survived']} |")


if __name__ == "__main__":
    main()

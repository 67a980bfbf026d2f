"""Every rule has a page, and what its examples say is what an election publishes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from consensus_scenes import KEY

from coordinator.consensus import Agreement, Outcome, elect, form_consensus, majority
from coordinator.consensus import staple as staple_module
from coordinator.consensus.poll import Poll
from coordinator.consensus.trimmed import Disagreement, disagreements
from wire.ballot import ABSTAIN, Labels, pack, pack_scored, unpack
from wire.privacy.declaration import Declaration
from wire.task.consensus_policy import RuleName
from wire.task.definition import TaskDefinition

FOLDER = Path(__file__).parents[2] / "docs" / "consensus"
PAGES = {path.stem: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.md")}
TOLD = {"published", "seen", "agreement", "sizes", "ballots"}
WORKED = {"disagreements", "first_turn", "turns", "learned", "majority"}


class Example:
    """An example of a page: its task, its ballots, and what it says comes of them."""

    def __init__(self, text: str) -> None:
        self.told: dict[str, Any] = yaml.safe_load(text)
        settings = {k: v for k, v in self.told.items() if k not in TOLD | WORKED}
        self.votes = {silo: line.split() for silo, line in self.told["ballots"].items()}
        self.task = TaskDefinition.model_validate(
            {
                "name": "example",
                "public_set": "u",
                "rows": len(next(iter(self.votes.values()))),
                **settings,
            }
        )
        self.declared = {
            silo: Declaration(units_log2=self.told.get("sizes", {}).get(silo))
            for silo in self.votes
        }

    def labels(self, line: str) -> list[int]:
        return [self._index(word) for word in line.split()]

    def _index(self, word: str) -> int:
        return ABSTAIN if word == "-" else self.task.labels.index(word)

    @property
    def box(self) -> list[tuple[str, bytes]]:
        packed = []
        for silo, words in self.votes.items():
            parts = [re.fullmatch(r"(-|[a-z]+)(\d*)", word) for word in words]
            labels = np.array([self._index(part[1]) for part in parts if part])
            if self.task.encoding == "scored":
                scores = np.array([int(part[2] or 0) for part in parts if part])
                packed.append((silo, pack_scored(labels, scores, self.task.shape)))
            else:
                packed.append((silo, pack(labels, self.task.shape)))
        return packed

    @property
    def poll(self) -> Poll:
        weights = dict.fromkeys(self.votes, 1)
        return Poll(self.task.shape, self.box, weights, KEY, self.task.label_space)

    @property
    def cast(self) -> list[Labels]:
        return [unpack(data, self.task.shape) for _, data in self.box]

    def held(self) -> Outcome:
        return elect(self.task, 1, self.declared, self.box)


EXAMPLES = [
    pytest.param(Example(text), id=f"{name}-{number}")
    for name, page in sorted(PAGES.items())
    for number, text in enumerate(re.findall(r"```yaml\n# example\n(.*?)```", page, re.DOTALL))
]


def of(name: str) -> Example:
    found = re.search(r"```yaml\n# example\n(.*?)```", PAGES[name], re.DOTALL)
    assert found is not None
    return Example(found[1])


def fraction(text: str) -> tuple[int, int]:
    first, second = text.split("/")
    return int(first), int(second)


@pytest.mark.parametrize("rule", RuleName)
def test_every_rule_has_a_page_with_an_example_and_a_line_in_the_table(rule: RuleName) -> None:
    name = rule.replace("_", "-")
    assert of(name).task.consensus.rule is rule
    assert f"| [`{rule}`]({name}.md) |" in PAGES["README"]


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_is_what_an_election_publishes(example: Example) -> None:
    outcome = example.held()
    assert outcome.labels().tolist() == example.labels(example.told["published"])
    for silo, line in example.told.get("seen", {}).items():
        seen = outcome.labels(example.task.label_space(silo))
        assert seen.tolist() == example.labels(line)
    for silo, text in example.told.get("agreement", {}).items():
        same, compared = fraction(text)
        assert outcome.agreement[silo] == Agreement(compared, same)


def test_the_disagreements_of_the_trimmed_example_are_those_of_the_page() -> None:
    example = of("trimmed")
    found = disagreements(example.poll, example.poll.tally())
    assert found == {
        silo: Disagreement(compared, differing)
        for silo, (differing, compared) in (
            (silo, fraction(text)) for silo, text in example.told["disagreements"].items()
        )
    }


def test_the_turns_of_the_staple_example_are_those_of_the_page(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    example = of("staple")
    silos = list(example.votes)

    def diagonals(learned: staple_module.Reliability, told: dict[str, Any]) -> None:
        for silo, expected in told.items():
            found = learned.confusion(silos.index(silo)).diagonal()
            np.testing.assert_allclose(found, expected, atol=0.001)

    learned = staple_module.learn(example.cast, 2)
    assert learned.iterations == example.told["turns"]
    diagonals(learned, example.told["learned"])
    counted = form_consensus(example.poll.tally(), majority, KEY)
    assert counted.tolist() == example.labels(example.told["majority"])
    monkeypatch.setattr(staple_module, "ITERATIONS", 1)
    diagonals(staple_module.learn(example.cast, 2), example.told["first_turn"])


@pytest.mark.parametrize("name", sorted(PAGES))
def test_links_between_pages_lead_somewhere(name: str) -> None:
    for target, anchor in re.findall(r"\]\(([\w./-]+\.md)(?:#([\w-]+))?\)", PAGES[name]):
        path = (FOLDER / target).resolve()
        assert path.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
            slugs = {re.sub(r"[^\w -]", "", one).lower().replace(" ", "-") for one in headings}
            assert anchor in slugs, f"{target}#{anchor}"

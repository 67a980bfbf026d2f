"""Approval: the policy's limits, a person's word on a digest, the record of both."""

from __future__ import annotations

import json
import multiprocessing
import stat
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import pytest
from rich.console import Console

from silo_agent.shared.home import SiloHome
from silo_agent.trainer.approval.consent import ApprovalState, Consent, Decision, act_on, decide
from silo_agent.trainer.approval.policy import ApprovalCriteria, Approve, Policy
from silo_agent.trainer.approval.record import Act, Approval, ApprovalRecord
from silo_agent.trainer.approval.view import SeenTask, find, print_definition, seen
from silo_agent.trainer.privacy.settings import PrivacySettings
from silo_agent.trainer.settings import RunningSettings, read_settings
from silo_agent.trainer.task_folder import TaskFolder
from wire.errors import (
    APPROVAL_NEEDED,
    APPROVAL_OUTDATED,
    APPROVAL_REFUSED_BY_POLICY,
    APPROVAL_WITHDRAWN,
    APPROVALS_BROKEN,
    SETTINGS_CHANGED,
    ConfigurationError,
    Refusal,
)
from wire.privacy.declaration import MechanismName
from wire.runtime.chain import Head, append
from wire.task.definition import TaskDefinition

pytestmark = pytest.mark.slow

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
SET = "ab" * 32
HERE = "5e" * 32
SILO = "data: {path: d.csv, label: y}\nmodel: svm\n"

CRITERIA = ApprovalCriteria(Policy(), HERE)


def task(**changes: object) -> TaskDefinition:
    values = {"name": "screening", "public_set": SET, "rows": 370, "labels": ["ill", "healthy"]}
    rounds = {"max_rounds": 5, "quorum": 3}
    return TaskDefinition.model_validate({**values, "rounds": rounds, **changes})


def limits(**values: object) -> Policy:
    return Policy.model_validate({"approve": "within_limits", **values})


def word(act: Act, definition: TaskDefinition, by: str = "anna") -> Approval:
    return act_on(act, definition, CRITERIA, by, NOW)


# -- limits -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keeps", "breaks", "says"),
    [
        ({"max_rounds": 5}, {"max_rounds": 4}, "max_rounds is 4, the task has 5"),
        ({"min_silos": 3}, {"min_silos": 4}, "min_silos is 4, the task's quorum is 3"),
        (
            {"public_sets": ["cd" * 32, SET]},
            {"public_sets": ["cd" * 32]},
            f"public_sets does not name {SET}",
        ),
        (
            {"labels": ["healthy", "ill"]},
            {"labels": ["healthy", "ill", "unknown"]},
            "labels names another label space",
        ),
    ],
)
def test_a_limit_is_kept_up_to_its_value_and_named_when_broken(
    keeps: dict[str, object], breaks: dict[str, object], says: str
) -> None:
    assert limits(**keeps).broken_by(task()) == ()
    assert limits(**breaks).broken_by(task()) == (says,)


@pytest.mark.parametrize(
    ("privacy", "says"),
    [
        ({}, "ballots have no noise, so ε = ∞"),
        (
            {"mechanism": {"name": "xor", "flip": 0.1}},
            "`privacy` sets no budget (epsilon) for a task",
        ),
        ({"mechanism": "xor", "epsilon": 2.5}, "`privacy` allows a task ε = 2.5"),
        (
            {"mechanism": {"name": "xor", "sensitivity": "empirical"}, "epsilon": 0.1},
            "the ε of xor is an estimate, not a guarantee",
        ),
    ],
)
def test_only_a_proved_budget_keeps_an_epsilon_limit(privacy: dict[str, object], says: str) -> None:
    promise = PrivacySettings.model_validate(privacy).promise
    assert limits(max_epsilon=2).broken_by(task(), promise) == (f"max_epsilon is 2, {says}",)


def test_an_epsilon_limit_is_kept_up_to_its_value() -> None:
    promise = PrivacySettings.model_validate(
        {"mechanism": "private_labeller", "epsilon": 2}
    ).promise
    assert limits(max_epsilon=2).broken_by(task(), promise) == ()


def test_a_task_that_asks_for_more_privacy_than_silo_yaml_gives_is_refused_at_home() -> None:
    asking = task(privacy={"mechanisms": ["private_labeller"], "max_epsilon": 1})
    promise = PrivacySettings.model_validate({"mechanism": "xor", "epsilon": 2}).promise
    broken = Policy().broken_by(asking, promise)
    assert broken == (
        "privacy: the task asks for more, it accepts private_labeller, not xor",
        "privacy: the task asks for more, it allows ε ≤ 1, not 2",
    )


def test_all_broken_limits_are_named_at_once() -> None:
    broken = limits(max_rounds=1, min_silos=9, max_epsilon=1).broken_by(task())
    assert [clause.split()[0] for clause in broken] == ["max_rounds", "max_epsilon", "min_silos"]


def write(folder: Path, policy: str) -> Path:
    path = folder / "silo.yaml"
    path.write_text(SILO + policy)
    return path


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        ("policy: {approve: within_limits}\n", "needs at least one limit"),
        ("policy: {max_round: 3}\n", "did you mean `max_rounds`?"),
        ("policy: {public_sets: [breast]}\n", "`policy.public_sets.0`"),
        ("policy: {max_epsilon: .inf}\n", "`policy.max_epsilon`"),
        ("policy: {max_rounds: 0}\n", "`policy.max_rounds`"),
        ("policy: {methods: []}\n", "`policy.methods`"),
    ],
)
def test_a_wrong_policy_is_refused_by_name_of_the_key(
    tmp_path: Path, policy: str, says: str
) -> None:
    path = write(tmp_path, policy)
    with pytest.raises(ConfigurationError) as refused:
        read_settings(path)
    assert says in refused.value.sentence


def test_without_a_policy_a_person_must_accept_each_task(tmp_path: Path) -> None:
    policy = read_settings(write(tmp_path, "")).policy
    assert policy.approve is Approve.MANUAL
    assert "a person accepts each task" in policy.in_words()[0]
    assert policy.in_words()[1:] == ("no limits are set",)


def test_labels_yaml_reads_as_booleans_are_class_names(tmp_path: Path) -> None:
    policy = read_settings(write(tmp_path, "policy: {labels: [yes, no]}\n")).policy
    assert policy.broken_by(task(labels=[True, False])) == ()


def test_a_policy_in_words_names_every_limit() -> None:
    policy = limits(
        max_rounds=7,
        max_epsilon=2,
        min_silos=4,
        public_sets=[SET],
        methods=["fedct"],
        labels=["a", "b"],
    )
    words = " | ".join(policy.in_words())
    for expected in ("without asking", "7 rounds", "ε = 2", "4 ballots", SET, "fedct", "a, b"):
        assert expected in words


# -- decisions --------------------------------------------------------------------------------------


def state_of(policy: Policy, *acts: Approval) -> ApprovalState:
    return decide(task(), ApprovalCriteria(policy, HERE), acts).state


def test_a_task_within_limits_still_waits_for_a_person_unless_the_policy_says_otherwise() -> None:
    assert state_of(Policy(max_rounds=5)) is ApprovalState.WAITING
    assert state_of(limits(max_rounds=5)) is ApprovalState.APPROVED


def test_a_persons_latest_word_decides() -> None:
    yes, no = word(Act.APPROVED, task()), word(Act.WITHDRAWN, task())
    assert state_of(Policy(), yes) is ApprovalState.APPROVED
    assert state_of(Policy(), yes, no) is ApprovalState.WAITING
    assert state_of(Policy(), yes, no, yes) is ApprovalState.APPROVED


def test_a_withdrawal_stands_above_the_policys_acceptance() -> None:
    accepted = word(Act.ACCEPTED_BY_POLICY, task())
    no = word(Act.WITHDRAWN, task())
    assert state_of(limits(max_rounds=5), accepted, no) is ApprovalState.WAITING


def test_what_the_policy_once_accepted_waits_for_a_person_when_the_policy_asks_for_one() -> None:
    assert state_of(Policy(), word(Act.ACCEPTED_BY_POLICY, task())) is ApprovalState.WAITING


def test_approval_never_overrides_a_limit() -> None:
    decision = decide(
        task(), ApprovalCriteria(Policy(max_rounds=4), HERE), [word(Act.APPROVED, task())]
    )
    assert decision == Decision(ApprovalState.REFUSED, ("max_rounds is 4, the task has 5",))


@pytest.mark.parametrize(
    "changes",
    [
        {"rounds": {"max_rounds": 6, "quorum": 3}},
        {"rounds": {"max_rounds": 5, "quorum": 2}},
        {"public_set": "cd" * 32},
        {"labels": ["healthy", "ill"]},
        {"encoding": "one_hot"},
        {"silos": ["a", "b", "c"]},
        {"local_steps": 51},
        {"privacy": {"party_gamma": 0.1}},
    ],
)
def test_a_changed_task_of_the_same_name_needs_a_new_approval(changes: dict[str, object]) -> None:
    approvals = [word(Act.APPROVED, task())]
    assert (
        decide(task(), ApprovalCriteria(Policy(), HERE), approvals).state is ApprovalState.APPROVED
    )
    changed = decide(task(**changes), ApprovalCriteria(Policy(), HERE), approvals)
    assert changed.state is ApprovalState.WAITING


# -- the record -------------------------------------------------------------------------------------


def filled(path: Path) -> ApprovalRecord:
    record = ApprovalRecord(path)
    for act in (Act.APPROVED, Act.WITHDRAWN, Act.APPROVED):
        record.add(act_on(act, task(), CRITERIA, "anna", NOW, "ethics vote 4711"))
    return record


def test_the_record_says_who_when_what_and_the_whole_definition(tmp_path: Path) -> None:
    path = tmp_path / "trainer" / "approvals.jsonl"
    filled(path)
    first, *_ = ApprovalRecord(path).approvals()
    assert (first.act, first.by, first.task) == (Act.APPROVED, "anna", "screening")
    assert first.at == "2026-03-01T12:00:00+00:00"
    assert first.note == "ethics vote 4711"
    assert TaskDefinition.model_validate(first.definition) == task()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def forged(path: Path) -> None:
    path.write_text(path.read_text().replace("anna", "otto", 1))


def withdrawal_removed(path: Path) -> None:
    lines = path.read_text().splitlines(keepends=True)
    path.write_text(lines[0] + lines[2])


def unreadable(path: Path) -> None:
    path.write_text("{}\n" + path.read_text())


@pytest.mark.parametrize("tamper", [forged, withdrawal_removed, unreadable])
def test_a_record_that_was_tampered_with_approves_nothing(
    tmp_path: Path, tamper: Callable[[Path], None]
) -> None:
    path = tmp_path / "approvals.jsonl"
    filled(path)
    tamper(path)
    before = path.read_bytes()
    for use in (
        lambda: ApprovalRecord(path).approvals(),
        lambda: ApprovalRecord(path).add(act_on(Act.APPROVED, task(), CRITERIA, "otto", NOW)),
    ):
        with pytest.raises(Refusal) as refused:
            use()
        assert refused.value.is_a(APPROVALS_BROKEN)
    assert path.read_bytes() == before


def test_a_running_trainer_notices_that_the_last_act_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "approvals.jsonl"
    record = filled(path)
    record.approvals()
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:1]))
    with pytest.raises(Refusal, match="broken at entry 2"):
        record.approvals()


def test_a_line_cut_off_by_a_crash_was_never_an_act(tmp_path: Path) -> None:
    path = tmp_path / "approvals.jsonl"
    filled(path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-40])
    assert [a.act for a in ApprovalRecord(path).approvals()] == [Act.APPROVED, Act.WITHDRAWN]
    ApprovalRecord(path).add(
        act_on(Act.APPROVED, task(), CRITERIA, "anna", NOW, "ethics vote 4711")
    )
    assert path.read_bytes() == whole


def add_many(path: Path, name: str) -> None:
    for _ in range(20):
        ApprovalRecord(path).add(act_on(Act.APPROVED, task(), CRITERIA, name, NOW))


def test_people_who_approve_at_the_same_time_do_not_break_the_chain(tmp_path: Path) -> None:
    path = tmp_path / "approvals.jsonl"
    spawn = multiprocessing.get_context("spawn")
    people = [spawn.Process(target=add_many, args=(path, name)) for name in ("anna", "otto")]
    for someone in people:
        someone.start()
    for someone in people:
        someone.join()
    names = [approval.by for approval in ApprovalRecord(path).approvals()]
    assert sorted(names) == ["anna"] * 20 + ["otto"] * 20


# -- consent ----------------------------------------------------------------------------------------


def consent(folder: Path, policy: str) -> tuple[Consent, ApprovalRecord]:
    """As a trainer has it that started with `policy`, and the record as a person writes it."""
    path, file = folder / "approvals.jsonl", write(folder, policy)
    running = RunningSettings(read_settings(file), file)
    asked = Consent(
        running.settings.criteria, running.require_unchanged, ApprovalRecord(path), lambda: NOW
    )
    return asked, ApprovalRecord(path)


def here(folder: Path) -> ApprovalCriteria:
    return read_settings(folder / "silo.yaml").criteria


def test_consent_follows_the_record_while_the_trainer_runs(tmp_path: Path) -> None:
    asked, record = consent(tmp_path, "")
    with pytest.raises(Refusal) as refused:
        asked.require(task())
    assert refused.value.is_a(APPROVAL_NEEDED)
    assert "consilium agent approve screening" in refused.value.hint
    record.add(act_on(Act.APPROVED, task(), here(tmp_path), "anna", NOW))
    asked.require(task())
    record.add(act_on(Act.WITHDRAWN, task(), here(tmp_path), "anna", NOW))
    with pytest.raises(Refusal, match="has decided against task screening") as refused:
        asked.require(task())
    assert refused.value.is_a(APPROVAL_WITHDRAWN)


@pytest.mark.parametrize(
    "edited",
    [
        SILO + "policy: {max_rounds: 6}\n",
        SILO + "privacy: {mechanism: private_labeller, epsilon: 1}\n",
        SILO.replace("svm", "decision_tree"),
        SILO.replace("svm", "{name: svm, parameters: {C: 2}}"),
        SILO.replace("d.csv", "e.csv"),
        SILO + "seed: 1\n",
        SILO + "policy: {max_roundz: 5}\n",
        "",
    ],
)
def test_nothing_is_allowed_while_the_file_says_something_else(tmp_path: Path, edited: str) -> None:
    asked, record = consent(tmp_path, "")
    record.add(act_on(Act.APPROVED, task(), here(tmp_path), "anna", NOW))
    asked.require(task())
    (tmp_path / "silo.yaml").write_text(edited)
    with pytest.raises(Refusal) as refused:
        asked.require(task())
    assert refused.value.is_a(SETTINGS_CHANGED)
    assert "Restart the trainer" in refused.value.hint
    (tmp_path / "silo.yaml").unlink()
    with pytest.raises(Refusal, match="no longer says"):
        asked.require(task())
    # Written otherwise, it says the same.
    (tmp_path / "silo.yaml").write_text("# reviewed\npolicy: {}\n" + SILO)
    asked.require(task())


def test_a_task_is_judged_by_what_runs_and_not_by_the_file(tmp_path: Path) -> None:
    """Also if it is looked at between two looks at the file: nothing of the file is used."""
    file = write(tmp_path, "policy: {max_epsilon: 1}\n")
    running = read_settings(file)
    asked = Consent(
        running.criteria, lambda: None, ApprovalRecord(tmp_path / "approvals.jsonl"), lambda: NOW
    )
    write(tmp_path, "policy: {max_epsilon: 1}\nprivacy: {mechanism: xor, epsilon: 1}\n")
    with pytest.raises(Refusal, match="ballots have no noise") as refused:
        asked.require(task())
    assert refused.value.is_a(APPROVAL_REFUSED_BY_POLICY)


def test_an_approval_holds_for_the_settings_it_was_given_for(tmp_path: Path) -> None:
    _, record = consent(tmp_path, "privacy: {mechanism: xor, epsilon: 1}\n")
    record.add(act_on(Act.APPROVED, task(), here(tmp_path), "anna", NOW))
    weaker, _ = consent(tmp_path, "privacy: {mechanism: xor, epsilon: 2}\n")
    with pytest.raises(Refusal, match="was approved for other settings") as refused:
        weaker.require(task())
    assert refused.value.is_a(APPROVAL_OUTDATED)
    record.add(act_on(Act.APPROVED, task(), here(tmp_path), "anna", NOW))
    weaker.require(task())
    assert [approval.promise for approval in record.approvals()] == [
        "xor, at most ε = 1 at δ = 1e-05, then it abstains",
        "xor, at most ε = 2 at δ = 1e-05, then it abstains",
    ]


def test_an_approval_outlives_a_change_of_the_policy(tmp_path: Path) -> None:
    _, record = consent(tmp_path, "")
    record.add(act_on(Act.APPROVED, task(), here(tmp_path), "anna", NOW))
    kept, _ = consent(tmp_path, "policy: {max_rounds: 5}\n")
    kept.require(task())


def test_an_approval_of_an_earlier_version_is_asked_for_again(tmp_path: Path) -> None:
    asked, record = consent(tmp_path, "")
    earlier = asdict(act_on(Act.APPROVED, task(), here(tmp_path), "anna", NOW))
    del earlier["settings"], earlier["promise"]
    link = append(Head(), earlier)
    (tmp_path / "approvals.jsonl").write_text(json.dumps(asdict(link)) + "\n")
    with pytest.raises(Refusal) as refused:
        asked.require(task())
    assert refused.value.is_a(APPROVAL_OUTDATED)
    record.add(act_on(Act.APPROVED, task(), here(tmp_path), "anna", NOW))
    asked.require(task())


def test_a_policy_accepts_for_the_settings_that_run_and_records_them(tmp_path: Path) -> None:
    limit = "policy: {approve: within_limits, max_epsilon: 2}\n"
    for epsilon in (1, 2, 1):
        asked, record = consent(
            tmp_path, limit + f"privacy: {{mechanism: xor, epsilon: {epsilon}}}\n"
        )
        asked.require(task())
    words = [approval.promise for approval in record.approvals()]
    assert [word[:21] for word in words] == ["xor, at most ε = 1 at", "xor, at most ε = 2 at"]


def test_every_mechanism_has_settings_of_its_own(tmp_path: Path) -> None:
    """Also if nothing but its name is said."""
    digests = {
        read_settings(write(tmp_path, f"privacy: {{mechanism: {name}}}\n")).criteria.settings
        for name in MechanismName
    }
    assert len(digests) == len(MechanismName)


def test_what_the_policy_accepts_is_recorded_once(tmp_path: Path) -> None:
    asked, record = consent(tmp_path, "policy: {approve: within_limits, max_rounds: 5}\n")
    asked.require(task())
    asked.require(task())
    (entry,) = record.approvals()
    assert (entry.act, entry.by, entry.digest) == (
        Act.ACCEPTED_BY_POLICY,
        "policy",
        task().digest,
    )


# -- what a person reads ----------------------------------------------------------------------------


def laid_before(home: SiloHome, *definitions: TaskDefinition) -> None:
    for definition in definitions:
        TaskFolder(home.tasks, definition.digest).keep_definition(definition)


def test_a_task_is_found_by_name_or_digest_and_two_of_a_name_only_by_digest(tmp_path: Path) -> None:
    home = SiloHome(tmp_path)
    write(tmp_path, "")
    other, changed = task(name="other"), task(local_steps=7)
    laid_before(home, task(), other, changed)
    tasks = seen(home, here(tmp_path))
    assert find(tasks, "other").definition == other
    assert find(tasks, changed.digest).definition == changed
    assert find(tasks, task().digest[:12]).definition == task()
    with pytest.raises(ConfigurationError) as refused:
        find(tasks, "screening")
    assert task().digest in refused.value.sentence
    assert changed.digest in refused.value.sentence
    with pytest.raises(ConfigurationError, match="No task nowhere"):
        find(tasks, "nowhere")


def test_the_listing_says_where_each_task_stands(tmp_path: Path) -> None:
    home = SiloHome(tmp_path)
    write(tmp_path, "policy: {max_rounds: 5}\n")
    waiting, long = task(name="waiting"), task(name="long", rounds={"max_rounds": 6, "quorum": 3})
    laid_before(home, task(), waiting, long)
    record = ApprovalRecord(home.approvals)
    record.add(act_on(Act.APPROVED, task(), here(tmp_path), "anna", NOW))
    for number in (1, 2, 3, 5):
        TaskFolder(home.tasks, task().digest).keep_ballot(number, b"", b"")
    rows = {str(found.row()["task"]): found.row() for found in seen(home, here(tmp_path))}
    assert str(rows["screening"]["status"]).startswith("approved by anna, 2026-")
    assert rows["screening"]["voted"] == "1-3, 5"
    assert rows["waiting"]["status"] == "waiting for approval"
    assert rows["long"]["status"] == "refused by policy: max_rounds is 5, the task has 6"
    assert json.dumps([found.to_json() for found in seen(home, here(tmp_path))])


def printed(definition: TaskDefinition) -> str:
    console = Console(width=200)
    with console.capture() as captured:
        print_definition(
            SeenTask(
                definition, ApprovalCriteria(Policy(), HERE), Decision(ApprovalState.WAITING), ()
            ),
            console,
        )
    return captured.get()


def test_a_person_reads_how_much_can_leave_and_that_it_is_not_noised() -> None:
    text = printed(task())
    assert "370 rows × 2 bits × 5 rounds: at most 5 ballots of 94 B, 470 B in all" in text
    assert "without noise" in text
    assert task().digest in text


def test_a_person_reads_that_the_number_of_patients_leaves() -> None:
    weighing = task(consensus={"rule": "weighted", "credibility": "data_size"})
    text = " ".join(printed(weighing).split())
    assert "the number of patients (rows, where no column says who is whose), rounded down" in text
    assert "number of patients" not in printed(task())


def test_a_person_reads_who_is_said_to_know_which_classes() -> None:
    text = printed(
        task(
            method="cofed",
            rounds={"quorum": 3},
            label_spaces={"north": ["[red]ill"]},
            labels=["[red]ill", "b"],
        )
    )
    assert "north knows [red]ill; every other silo all of them" in text
    assert "per_class_threshold" in text


def test_a_label_cannot_hide_what_a_person_approves() -> None:
    text = printed(task(labels=["ill\x1b[2K\x1b[1A", "[red]healthy", "a\u202eb"]))
    assert "\x1b[2K" not in text
    assert "\\x1b[2K" in text
    assert "[red]healthy" in text
    assert "\u202e" not in text

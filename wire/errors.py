"""The error catalogue: every refusal a person can meet, with its code, gRPC status, sentence and hint.

    ConsiliumError            anything with a sentence for a person
    ├── Refusal               one entry of the catalogue, raised here or received from a peer
    └── ConfigurationError    a file the person wrote: names the file, the key and the fix

A server raises `Refusal`; its interceptor turns it into a gRPC status whose details are the sentence and whose
trailing metadata carry the code. A client turns that back into a `Refusal` (`from_rpc`): code and hint are the
catalogue's own, and a sentence that says more than the catalogue's is shown as the peer's words.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from string import Formatter
from typing import cast

import grpc

from wire.remote_text import is_plain_word, quoted, visible

CODE_KEY = "consilium-code"
HINT_KEY = "consilium-hint"
"""Sent for clients of 0.1.0; newer ones show the hints of their own catalogue."""

# A configuration error may list many keys.
_MOST_CHARACTERS = 10_000


class ConsiliumError(Exception):
    """What happened, to which thing, and what to do; never internals, never labels.

    Sentence and hint may quote anything: what is not printable in them is spelled out.
    """

    def __init__(self, code: str, sentence: str, hint: str = "") -> None:
        self.code = code
        self.sentence = visible(sentence.replace("\n", " "), _MOST_CHARACTERS)
        self.hint = visible(hint.replace("\n", " "), _MOST_CHARACTERS)
        super().__init__(self.sentence)


class ConfigurationError(ConsiliumError):
    """A file or option is wrong."""

    def __init__(self, sentence: str, hint: str = "") -> None:
        super().__init__("CONFIGURATION", sentence, hint)


@dataclass(frozen=True)
class Fault:
    """One row of the catalogue. Sentence and hint are `str.format` templates."""

    code: str
    status: grpc.StatusCode
    sentence: str
    hint: str


class Refusal(ConsiliumError):
    """A catalogue entry filled in: `Refusal(ROUND_CLOSED, task="t", round=3)`."""

    def __init__(self, fault: Fault, **details: object) -> None:
        super().__init__(fault.code, fault.sentence.format(**details), fault.hint.format(**details))
        self.status = fault.status

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Trailing metadata: gRPC wants printable ASCII."""
        hint = self.hint.encode("ascii", "replace").decode()
        return ((CODE_KEY, self.code), (HINT_KEY, hint))

    def is_a(self, *faults: Fault) -> bool:
        """True if this is one of the given catalogue entries."""
        return any(self.code == fault.code for fault in faults)


CATALOGUE: dict[str, Fault] = {}


def _fault(code: str, status: grpc.StatusCode, sentence: str, hint: str) -> Fault:
    fault = Fault(code, status, sentence, hint)
    CATALOGUE[code] = fault
    return fault


_S = grpc.StatusCode

# -- who is calling ---------------------------------------------------------------------------------
NO_IDENTITY = _fault(
    "NO_IDENTITY",
    _S.UNAUTHENTICATED,
    "The call carries no Consilium certificate.",
    "Join first: `consilium agent join TOKEN`.",
)
OTHER_CONSORTIUM = _fault(
    "OTHER_CONSORTIUM",
    _S.PERMISSION_DENIED,
    "The certificate is of the consortium {found}, not of {expected}.",
    "Use the identity of the right consortium; see `consilium agent doctor` for the one in use here.",
)
WRONG_ROLE = _fault(
    "WRONG_ROLE",
    _S.PERMISSION_DENIED,
    "{name} has the role {role}; {method} needs {allowed}.",
    "Use the certificate of the right role.",
)
SILO_UNKNOWN = _fault(
    "SILO_UNKNOWN",
    _S.NOT_FOUND,
    "No silo is registered as {name}.",
    "See `consilium silo list`; register it with `consilium silo register {name}`.",
)
SILO_REVOKED = _fault(
    "SILO_REVOKED",
    _S.PERMISSION_DENIED,
    "Silo {name} has been revoked.",
    "Ask the consortium's admin whether {name} should be registered anew.",
)
SILO_SUSPENDED = _fault(
    "SILO_SUSPENDED",
    _S.PERMISSION_DENIED,
    "Silo {name} is suspended.",
    "Nothing has to be done here; the agent goes on when the admin resumes {name}.",
)
ADMIN_UNKNOWN = _fault(
    "ADMIN_UNKNOWN",
    _S.NOT_FOUND,
    "No admin is registered as {name}.",
    "See `consilium admin list`; register one with `consilium admin register NAME`.",
)
ADMIN_REVOKED = _fault(
    "ADMIN_REVOKED",
    _S.PERMISSION_DENIED,
    "Admin {name} has been revoked.",
    "Ask another admin whether {name} should be registered anew.",
)
ADMIN_EXISTS = _fault(
    "ADMIN_EXISTS",
    _S.ALREADY_EXISTS,
    "An admin named {name} is already registered ({status}).",
    "Choose another name; or, if it has not joined yet, `consilium admin register {name} --replace-token`.",
)
LAST_ADMIN = _fault(
    "LAST_ADMIN",
    _S.FAILED_PRECONDITION,
    "{name} is the only active admin and cannot be revoked.",
    "Register another admin first.",
)
CERTIFICATE_SUPERSEDED = _fault(
    "CERTIFICATE_SUPERSEDED",
    _S.PERMISSION_DENIED,
    "{name} presented a certificate that has been replaced or withdrawn.",
    "If its latest certificate is lost, join again with a new token; an admin whom no other can invite, with `consilium coordinator admit-admin` on the coordinator's host.",
)
SILO_EXISTS = _fault(
    "SILO_EXISTS",
    _S.ALREADY_EXISTS,
    "A silo named {name} is already registered ({status}).",
    "Choose another name; or, if it has not joined yet, `consilium silo register {name} --replace-token`.",
)
SILO_RUNNING_ELSEWHERE = _fault(
    "SILO_RUNNING_ELSEWHERE",
    _S.ALREADY_EXISTS,
    "Silo {name} is already connected by another agent; its lease runs until {until}.",
    "Stop the other agent of {name}, or wait until its lease has ended.",
)
LEASE_LOST = _fault(
    "LEASE_LOST",
    _S.ABORTED,
    "This agent no longer holds the lease of silo {name}.",
    "The agent reconnects by itself; if another agent of {name} runs, stop one of them.",
)
VERSION_TOO_OLD = _fault(
    "VERSION_TOO_OLD",
    _S.FAILED_PRECONDITION,
    "The agent of {name} is of release {agent}; this coordinator is of {coordinator} and serves {oldest} and newer.",
    "Upgrade agent and trainer of {name}; nothing is lost, they go on where they were.",
)
NAME_INVALID = _fault(
    "NAME_INVALID",
    _S.INVALID_ARGUMENT,
    "{what} {name!r} is not a valid name.",
    "Use 1 to 63 lower-case letters, digits and hyphens, starting with a letter.",
)
AUDIT_BROKEN = _fault(
    "AUDIT_BROKEN",
    _S.DATA_LOSS,
    "The audit record is broken at entry {sequence}: {why}.",
    "Someone changed the record outside Consilium; keep a copy and compare it with a backup.",
)
SIGNER_UNKNOWN = _fault(
    "SIGNER_UNKNOWN",
    _S.NOT_FOUND,
    "No receipt was ever signed by {fingerprint}.",
    "Compare the fingerprint with the one in the receipt.",
)
RECEIPT_UNKNOWN = _fault(
    "RECEIPT_UNKNOWN",
    _S.NOT_FOUND,
    "The coordinator holds no ballot of silo {name} in round {round} of task {task}.",
    "It never arrived, came too late or was dropped; the agent goes on with the open round.",
)
RECEIPT_UNPROVEN = _fault(
    "RECEIPT_UNPROVEN",
    _S.DATA_LOSS,
    "The receipt at entry {sequence} proves nothing: {why}.",
    "Show the exported record to the consortium's admin and compare it with the coordinator's.",
)
# -- enrolment --------------------------------------------------------------------------------------
TOKEN_MALFORMED = _fault(
    "TOKEN_MALFORMED",
    _S.INVALID_ARGUMENT,
    "This is not a complete join token.",
    "Copy the whole line that `consilium silo register` printed.",
)
TOKEN_UNKNOWN = _fault(
    "TOKEN_UNKNOWN",
    _S.PERMISSION_DENIED,
    "The join token is not valid here.",
    "Ask the consortium's admin for a new one: `consilium silo register NAME --replace-token`.",
)
TOKEN_USED = _fault(
    "TOKEN_USED",
    _S.PERMISSION_DENIED,
    "The join token for {name} has already been used.",
    "If that was not you, tell the admin at once: someone else holds {name}'s certificate.",
)
TOKEN_EXPIRED = _fault(
    "TOKEN_EXPIRED",
    _S.PERMISSION_DENIED,
    "The join token for {name} expired at {expired}.",
    "Ask for a new one: `consilium silo register {name} --replace-token`.",
)
REQUEST_INVALID = _fault(
    "REQUEST_INVALID",
    _S.INVALID_ARGUMENT,
    "The certificate request is not valid: {why}.",
    "Join again with `consilium agent join TOKEN`; it makes a proper request.",
)
AUTHORITY_MISMATCH = _fault(
    "AUTHORITY_MISMATCH",
    _S.UNAUTHENTICATED,
    "The server at {address} does not belong to the authority pinned by the token.",
    "Something between you and the coordinator may be intercepting TLS; compare the fingerprint with the admin.",
)
# -- reaching the coordinator (raised on the client's side) ---------------------------------------------
UNREACHABLE = _fault(
    "UNREACHABLE",
    _S.UNAVAILABLE,
    "The coordinator at {address} cannot be reached: {why}.",
    "Check the address, the firewall and whether the coordinator runs.",
)
TLS_REFUSED = _fault(
    "TLS_REFUSED",
    _S.UNAUTHENTICATED,
    "The coordinator at {address} refused this certificate: {why}.",
    "{hint}",
)
SERVER_UNTRUSTED = _fault(
    "SERVER_UNTRUSTED",
    _S.UNAUTHENTICATED,
    "The server at {address} could not be verified: {why}.",
    "Check that the address is the coordinator's and that nothing intercepts TLS in between.",
)
TLS_INTERCEPTED = _fault(
    "TLS_INTERCEPTED",
    _S.UNAUTHENTICATED,
    "Something between here and {address} intercepts TLS: it shows a certificate issued by {issuer}, not by the consortium's authority.",
    "Ask your IT to exempt {host} from TLS inspection in the firewall, proxy or virus scanner.",
)
PROXY_REFUSED = _fault(
    "PROXY_REFUSED",
    _S.UNAVAILABLE,
    "The proxy {proxy} refused a tunnel to {address}: {why}.",
    "{hint}",
)
CERTIFICATE_EXPIRED = _fault(
    "CERTIFICATE_EXPIRED",
    _S.UNAUTHENTICATED,
    "The certificate of {name} expired at {expired}.",
    "Ask the admin for a new join token and run `consilium agent join TOKEN` again; a container joins when it starts with the new token in its file or Secret. Check this machine's clock.",
)
ADMIN_CERTIFICATE_EXPIRED = _fault(
    "ADMIN_CERTIFICATE_EXPIRED",
    _S.UNAUTHENTICATED,
    "The certificate of admin {name} expired at {expired}.",
    "On the coordinator's host run `consilium coordinator admit-admin`; elsewhere ask another admin to revoke {name} and register it anew. Check this machine's clock.",
)
CERTIFICATE_NOT_YET_VALID = _fault(
    "CERTIFICATE_NOT_YET_VALID",
    _S.UNAUTHENTICATED,
    "The certificate of {name} is valid only from {begins}; this machine's clock says {now}.",
    "Set this machine's clock; if it is right, the coordinator's is ahead: tell its operator.",
)
CLOCK_SKEW = _fault(
    "CLOCK_SKEW",
    _S.UNAUTHENTICATED,
    "The clocks of this machine and of the coordinator at {address} disagree: {why}.",
    "Set this machine's clock (NTP); if it is right, the coordinator's is wrong: tell its operator.",
)
# -- public sets ------------------------------------------------------------------------------------
PUBLIC_SET_UNKNOWN = _fault(
    "PUBLIC_SET_UNKNOWN",
    _S.NOT_FOUND,
    "There is no public set {reference}.",
    "See `consilium public-set list`.",
)
PUBLIC_SET_INVALID = _fault(
    "PUBLIC_SET_INVALID",
    _S.INVALID_ARGUMENT,
    "{path} cannot be a public set: {why}.",
    "{fix}",
)
EXTRACTOR_INVALID = _fault(
    "EXTRACTOR_INVALID",
    _S.INVALID_ARGUMENT,
    "The extractor cannot be used: {why}.",
    "Train one on the task's public set: `consilium public-set pretrain`.",
)
CONTENT_CORRUPT = _fault(
    "CONTENT_CORRUPT",
    _S.DATA_LOSS,
    "What arrived of {what} does not have the digest {digest}.",
    "Send or fetch it again; if it persists, something alters the data on the way or on the disk.",
)
OFFSET_OUT_OF_RANGE = _fault(
    "OFFSET_OUT_OF_RANGE",
    _S.OUT_OF_RANGE,
    "There are {size} bytes of {what}; offset {offset} lies beyond its end.",
    "Delete the partial download and fetch it again.",
)
EXTRACTOR_UNKNOWN = _fault(
    "EXTRACTOR_UNKNOWN",
    _S.NOT_FOUND,
    "There is no extractor {reference}.",
    "See `consilium public-set extractors`.",
)
EXTRACTOR_TOO_LARGE = _fault(
    "EXTRACTOR_TOO_LARGE",
    _S.RESOURCE_EXHAUSTED,
    "The extractor has {size} bytes; the coordinator takes {most}.",
    "Train one with fewer dimensions, or ask the operator to raise `limits.extractor_bytes` in coordinator.yaml.",
)
# -- tasks ------------------------------------------------------------------------------------------
TASK_UNKNOWN = _fault(
    "TASK_UNKNOWN", _S.NOT_FOUND, "There is no task {task}.", "See `consilium task list`."
)
TASK_EXISTS = _fault(
    "TASK_EXISTS",
    _S.ALREADY_EXISTS,
    "A task named {task} exists with another definition.",
    "Definitions are immutable: choose another name.",
)
TASK_INVALID = _fault(
    "TASK_INVALID",
    _S.INVALID_ARGUMENT,
    "The task definition is not valid: {why}.",
    "Correct task.yaml and create it again.",
)
TASK_NOT_RUNNING = _fault(
    "TASK_NOT_RUNNING",
    _S.FAILED_PRECONDITION,
    "Task {task} is {status}.",
    "Start it with `consilium task start {task}`.",
)
TASK_CHANGED = _fault(
    "TASK_CHANGED",
    _S.FAILED_PRECONDITION,
    "The ballot is for another definition of task {task}.",
    "The agent follows the coordinator's definition by itself; if this persists, restart it.",
)
TOO_FEW_SILOS = _fault(
    "TOO_FEW_SILOS",
    _S.FAILED_PRECONDITION,
    "Task {task} needs {quorum} silos; {active} can take part.",
    "Register more silos, or create a task with a smaller quorum.",
)
TASK_NAMES_STRANGERS = _fault(
    "TASK_NAMES_STRANGERS",
    _S.FAILED_PRECONDITION,
    "Task {task} gives classes or weights to silos that are not registered: {names}.",
    "Register them, or create a task that spells names as `consilium silo list` does.",
)
PREVIEW_REFUSED = _fault(
    "PREVIEW_REFUSED",
    _S.FAILED_PRECONDITION,
    "No preview of task {task}: {why}.",
    "See `consilium task show {task}` for its rule, encoding and privacy.",
)
# -- rounds and ballots -------------------------------------------------------------------------------
NOT_A_PARTICIPANT = _fault(
    "NOT_A_PARTICIPANT",
    _S.PERMISSION_DENIED,
    "Silo {name} does not take part in round {round} of task {task}.",
    "Silos that join later take part from the next round on.",
)
ROUND_NOT_OPEN = _fault(
    "ROUND_NOT_OPEN",
    _S.FAILED_PRECONDITION,
    "Round {round} of task {task} has not been opened; round {open} is open.",
    "Vote in the open round.",
)
ROUND_CLOSED = _fault(
    "ROUND_CLOSED",
    _S.FAILED_PRECONDITION,
    "Round {round} of task {task} is closed; the ballot came too late.",
    "The agent goes on with the latest consensus; raise the task's deadline if this happens often.",
)
BALLOT_CONFLICT = _fault(
    "BALLOT_CONFLICT",
    _S.ALREADY_EXISTS,
    "Silo {name} has already cast a different ballot in round {round} of task {task}.",
    "The first ballot stands. Check that only one agent of {name} runs and that its state was not restored from a backup.",
)
BALLOT_TOO_LARGE = _fault(
    "BALLOT_TOO_LARGE",
    _S.RESOURCE_EXHAUSTED,
    "The ballot is larger than the {expected} bytes it must have.",
    "Agent and coordinator may run incompatible versions.",
)
BALLOT_LENGTH = _fault(
    "BALLOT_LENGTH",
    _S.INVALID_ARGUMENT,
    "The ballot has {actual} bytes; {rows} rows and {classes} classes as {encoding} make {expected}.",
    "Agent and coordinator may run incompatible versions.",
)
BALLOT_PADDING = _fault(
    "BALLOT_PADDING",
    _S.INVALID_ARGUMENT,
    "The ballot has bits set in the padding behind its last row.",
    "Agent and coordinator may run incompatible versions.",
)
BALLOT_ENCODING = _fault(
    "BALLOT_ENCODING",
    _S.INVALID_ARGUMENT,
    "The ballot's encoding {actual} is not the task's {expected}.",
    "Agent and coordinator may run incompatible versions.",
)
BALLOT_LABEL = _fault(
    "BALLOT_LABEL",
    _S.INVALID_ARGUMENT,
    "The ballot names a class beyond the {classes} of the label space.",
    "The silo's label space differs from the task's.",
)
BALLOT_LABEL_SPACE = _fault(
    "BALLOT_LABEL_SPACE",
    _S.INVALID_ARGUMENT,
    "The ballot of silo {name} votes for a class that task {task} says it does not know.",
    "Check `label_spaces` in the task against the labels in this silo's data.",
)
BALLOT_SCORE = _fault(
    "BALLOT_SCORE",
    _S.INVALID_ARGUMENT,
    "The ballot has a certainty in a row on which it abstains.",
    "Agent and coordinator may run incompatible versions.",
)
PRIVACY_TOO_WEAK = _fault(
    "PRIVACY_TOO_WEAK",
    _S.FAILED_PRECONDITION,
    "Task {task} does not take this ballot: {why}.",
    "Choose more protection under `privacy` in silo.yaml, or ask the admin for a task that asks for less.",
)
PARTY_LEDGER_BROKEN = _fault(
    "PARTY_LEDGER_BROKEN",
    _S.DATA_LOSS,
    "The coordinator's privacy ledger and its audit record disagree about task {task}, round {round}: {why}.",
    "Someone altered one of them: keep a copy of the database and run `consilium audit verify`.",
)
BALLOT_DIGEST = _fault(
    "BALLOT_DIGEST",
    _S.DATA_LOSS,
    "The ballot's bits do not have the digest in its header.",
    "Send it again; if it persists, something alters data on the way.",
)
MESSAGE_MALFORMED = _fault(
    "MESSAGE_MALFORMED",
    _S.INVALID_ARGUMENT,
    "The call is malformed: {why}.",
    "Agent and coordinator may run incompatible versions.",
)
FIELD_TOO_LONG = _fault(
    "FIELD_TOO_LONG",
    _S.INVALID_ARGUMENT,
    "{field} holds {actual} {unit}; at most {most} are taken.",
    "Shorten what was written there; if nobody wrote it, agent and coordinator may run incompatible versions.",
)
CONSENSUS_UNKNOWN = _fault(
    "CONSENSUS_UNKNOWN",
    _S.NOT_FOUND,
    "Task {task} has no consensus of round {round}.",
    "Wait until the round has closed.",
)
# -- the private side ---------------------------------------------------------------------------------
TRAINER_UNREACHABLE = _fault(
    "TRAINER_UNREACHABLE",
    _S.UNAVAILABLE,
    "The trainer does not answer at {socket}.",
    "The agent goes on as soon as it does; if it stays away, its own log says why.",
)
NOT_PREPARED = _fault(
    "NOT_PREPARED",
    _S.FAILED_PRECONDITION,
    "The trainer has not been prepared for task {task}.",
    "The agent prepares it by itself; if this persists, restart both.",
)
APPROVAL_NEEDED = _fault(
    "APPROVAL_NEEDED",
    _S.FAILED_PRECONDITION,
    "Task {task} ({digest}) is waiting for this hospital's approval.",
    "Someone at the hospital reads and accepts it with `consilium agent approve {task}`.",
)
APPROVAL_WITHDRAWN = _fault(
    "APPROVAL_WITHDRAWN",
    _S.FAILED_PRECONDITION,
    "Someone at this hospital has decided against task {task} ({digest}).",
    "Nothing has to be done; whoever decides otherwise accepts it with `consilium agent approve {task}`.",
)
APPROVAL_REFUSED_BY_POLICY = _fault(
    "APPROVAL_REFUSED_BY_POLICY",
    _S.PERMISSION_DENIED,
    "This hospital's policy does not allow task {task} ({digest}): {why}.",
    "Ask the admin for another task, or change `policy` in silo.yaml; approval cannot override it.",
)
APPROVAL_OUTDATED = _fault(
    "APPROVAL_OUTDATED",
    _S.FAILED_PRECONDITION,
    "Task {task} ({digest}) was approved for other settings than silo.yaml has now.",
    "Someone at the hospital reads what would leave now and accepts it again with `consilium agent approve {task}`.",
)
SETTINGS_CHANGED = _fault(
    "SETTINGS_CHANGED",
    _S.FAILED_PRECONDITION,
    "silo.yaml no longer says what the trainer runs with.",
    "Restart the trainer, or put silo.yaml back as it was; until then nothing is trained and nothing leaves.",
)
PROPOSALS_FULL = _fault(
    "PROPOSALS_FULL",
    _S.RESOURCE_EXHAUSTED,
    "Task {task} ({digest}) is not laid before this hospital: {most} others wait for a decision.",
    "Decide on some of `consilium agent tasks`: `consilium agent approve TASK`, with --withdraw to refuse one.",
)
PUBLIC_FILES_TOO_LARGE = _fault(
    "PUBLIC_FILES_TOO_LARGE",
    _S.FAILED_PRECONDITION,
    "The public files of task {task} have {size} bytes; this hospital's policy takes {most}.",
    "Raise `policy.max_public_bytes` in silo.yaml, or ask the admin for a smaller public set.",
)
APPROVALS_BROKEN = _fault(
    "APPROVALS_BROKEN",
    _S.DATA_LOSS,
    "This hospital's record of approvals is broken at entry {sequence}: {why}.",
    "Nothing is trained until it is whole: keep a copy and restore trainer/approvals.jsonl from a backup.",
)
BALLOT_DAMAGED = _fault(
    "BALLOT_DAMAGED",
    _S.DATA_LOSS,
    "The ballot kept for round {round} of task {task} is not the one that was paid for.",
    "It stays here. Put the task's folder back from a backup of the trainer; other rounds and tasks go on.",
)
BALLOT_OUTDATED = _fault(
    "BALLOT_OUTDATED",
    _S.FAILED_PRECONDITION,
    "The ballot of round {round} of task {task} was made with less privacy than silo.yaml promises now.",
    "It stays here, and the round goes on without this hospital; the next one is voted in as approved.",
)
LEDGER_BROKEN = _fault(
    "LEDGER_BROKEN",
    _S.DATA_LOSS,
    "This hospital's privacy ledger is broken: {why}.",
    "Nothing is released: keep a copy for the data protection officer, put back the newest whole ledger.db, then charge what it lacks with `consilium agent ledger write-off`.",
)
LEDGER_ROLLED_BACK = _fault(
    "LEDGER_ROLLED_BACK",
    _S.DATA_LOSS,
    "This hospital's privacy ledger may lack what was spent: {why}.",
    "Nothing is released: put back the newest ledger.db and its witness; if they are lost, charge what is lacking with `consilium agent ledger write-off`.",
)
LEDGER_UNUSABLE = _fault(
    "LEDGER_UNUSABLE",
    _S.UNAVAILABLE,
    "This hospital's privacy ledger cannot be used: {path}: {why}.",
    "Nothing is released until it can be written: check the disk, and that the account that runs the trainer owns the file.",
)
PATIENTS_CHARGED_ELSEWHERE = _fault(
    "PATIENTS_CHARGED_ELSEWHERE",
    _S.FAILED_PRECONDITION,
    "Patients of this hospital's data set were charged under another name.",
    "Nothing is released: `consilium agent check` at the hospital says under which; put the old name back, or write the reason under privacy.same_patients_as in silo.yaml and restart the trainer: both are then charged together.",
)
PATIENT_RECORD_LOST = _fault(
    "PATIENT_RECORD_LOST",
    _S.DATA_LOSS,
    "This hospital's record of whose data were released from lacks a data set.",
    "Nothing is released: put back the newest trainer/patients.db, or name the data set under privacy.same_patients_as in silo.yaml (`consilium agent check` says which) and restart the trainer.",
)
PATIENT_RECORD_UNUSABLE = _fault(
    "PATIENT_RECORD_UNUSABLE",
    _S.UNAVAILABLE,
    "This hospital's record of whose data were released from cannot be used: {why}.",
    "Nothing is released until it can be written: check the disk, and that the account that runs the trainer owns trainer/patients.db.",
)
BUDGET_EXCEEDED = _fault(
    "BUDGET_EXCEEDED",
    _S.RESOURCE_EXHAUSTED,
    "This hospital's privacy budget does not allow another ballot: {why}.",
    "The silo abstains and goes on receiving consensus; what was spent: `consilium agent ledger`.",
)
ROUND_BEYOND_TASK = _fault(
    "ROUND_BEYOND_TASK",
    _S.OUT_OF_RANGE,
    "Task {task} has rounds 1 to {rounds}; round {round} was asked of the trainer.",
    "What was approved ends there; if the agent asked this by itself, tell the admin.",
)
DATA_MISMATCH = _fault(
    "DATA_MISMATCH",
    _S.FAILED_PRECONDITION,
    "The private data do not fit task {task}.",
    "`consilium agent check` on the private side says why; correct silo.yaml or the data there, then restart the trainer.",
)
PRIVATE_SIDE_UNREADY = _fault(
    "PRIVATE_SIDE_UNREADY",
    _S.FAILED_PRECONDITION,
    "Something on the private side has to be corrected before it can serve this task.",
    "`consilium agent check` on the private side says what; so does the trainer's log.",
)
TRAINING_FAILED = _fault(
    "TRAINING_FAILED",
    _S.INTERNAL,
    "Training for round {round} failed in the trainer.",
    "The trainer's own log has the details; they never leave the private side.",
)
# -- what the coordinator stands on ---------------------------------------------------------------------
DISK_FULL = _fault(
    "DISK_FULL",
    _S.RESOURCE_EXHAUSTED,
    "There is no room left on the disk for {path}.",
    "Free some space there, then repeat what was refused; what was accepted before is safe.",
)
STORE_UNAVAILABLE = _fault(
    "STORE_UNAVAILABLE",
    _S.UNAVAILABLE,
    "The coordinator cannot use its database at the moment.",
    "Try again in a while; nothing that was confirmed is lost. The operator finds the reason in the log.",
)
COORDINATOR_STOPPING = _fault(
    "COORDINATOR_STOPPING",
    _S.UNAVAILABLE,
    "The coordinator is being stopped or started again.",
    "Silos come back by themselves; repeat a command of yours in a moment. Nothing is lost.",
)
CONTENT_MISSING = _fault(
    "CONTENT_MISSING",
    _S.UNAVAILABLE,
    "The {what} is registered, but its file is not in this coordinator's folder.",
    "The operator mounts the shared folder here, or publishes the same file once more.",
)
# -- too much at once -----------------------------------------------------------------------------------
RATE_LIMITED = _fault(
    "RATE_LIMITED",
    _S.RESOURCE_EXHAUSTED,
    "This caller makes calls faster than they are answered; the next may come in {seconds} s.",
    "Wait that long. If nothing here calls so often, ask the operator to raise `limits` in coordinator.yaml.",
)
TOO_MANY_CALLS = _fault(
    "TOO_MANY_CALLS",
    _S.RESOURCE_EXHAUSTED,
    "This caller has {most} calls under way, as many as it may have at once.",
    "Let some of them end. If they belong to nothing running here, someone else holds this certificate.",
)
HEADERS_TOO_LARGE = _fault(
    "HEADERS_TOO_LARGE",
    _S.RESOURCE_EXHAUSTED,
    "The call's headers have {size} bytes; the coordinator takes {most}.",
    "A proxy on the way may add too many; ask whoever runs it.",
)
STREAM_REPLACED = _fault(
    "STREAM_REPLACED",
    _S.ABORTED,
    "Newer streams of this caller took the place of this one.",
    "Nothing has to be done after a lost connection; otherwise stop what else uses this certificate.",
)
UPLOAD_STALLED = _fault(
    "UPLOAD_STALLED",
    _S.DEADLINE_EXCEEDED,
    "Nothing more of the call arrived for {seconds} s.",
    "Send it again; if it persists, something on the way holds data back.",
)
MESSAGES_TOO_SMALL = _fault(
    "MESSAGES_TOO_SMALL",
    _S.RESOURCE_EXHAUSTED,
    "The upload came in {messages} messages of {bytes} bytes together.",
    "Send larger pieces: 1 MiB each. Agent and coordinator may run incompatible versions.",
)
# -- anything else --------------------------------------------------------------------------------------
INTERNAL = _fault(
    "INTERNAL",
    _S.INTERNAL,
    "The coordinator met an unexpected error; it is logged as {incident}.",
    "Tell the operator the incident number.",
)


REFUSAL_UNKNOWN = _fault(
    "REFUSAL_UNKNOWN",
    _S.UNKNOWN,
    "The call was refused with the code {code}, which this release does not know. {words}.",
    "The other side may run a newer release; do nothing it asks for before you have asked its operator.",
)


def from_rpc(error: grpc.RpcError, peer: str = "The coordinator") -> Refusal | None:
    """The refusal that `peer` sent, or None if the error is the transport's own.

    The hint is the local catalogue's. The sentence is the catalogue's, filled with the names and numbers of the
    peer's; one that is anything else is quoted as the peer's words. So is that of a code nobody knows here.
    """
    metadata = cast("Iterable[tuple[str, str | bytes]]", error.trailing_metadata() or ())
    code = dict(metadata).get(CODE_KEY)
    if code is None:
        return None
    fault, said = CATALOGUE.get(str(code)), error.details() or ""
    if fault is None or fault is REFUSAL_UNKNOWN:
        shown = visible(str(code), _LONGEST_CODE)
        return Refusal(REFUSAL_UNKNOWN, code=shown, words=quoted(peer, said))
    details = _details(fault.sentence, said)
    ours = details is not None and all(map(is_plain_word, details.values()))
    refusal = Refusal.__new__(Refusal)
    ConsiliumError.__init__(
        refusal, fault.code, said if ours else quoted(peer, said), _hint(fault, details or {})
    )
    refusal.status = fault.status
    return refusal


_LONGEST_CODE = 40


def _details(template: str, sentence: str) -> dict[str, str] | None:
    """What fills the fields of `template` in `sentence`; None if it is not such a sentence."""
    pattern, seen = "", set[str]()
    for literal, field, _, conversion in Formatter().parse(template):
        pattern += re.escape(literal)
        if field and field in seen:
            pattern += f"(?P={field})"
        elif field:
            quote = "'" if conversion == "r" else ""
            pattern += f"{quote}(?P<{field}>.*?){quote}"
            seen.add(field)
    found = re.fullmatch(pattern, sentence, re.DOTALL)
    return found.groupdict() if found else None


def _hint(fault: Fault, details: Mapping[str, str]) -> str:
    """The catalogue's hint; where the peer gave no plain word for a field, the field's name in capitals."""
    fields = [field for _, field, _, _ in Formatter().parse(fault.hint) if field]
    if fault.hint in {f"{{{field}}}" for field in fields}:
        return ""
    given = {field: details.get(field, "") for field in fields}
    return fault.hint.format(
        **{field: word if is_plain_word(word) else field.upper() for field, word in given.items()}
    )


def catalogue_page() -> str:
    """docs/errors.md: `python -m wire.errors > docs/errors.md`."""
    lines = [
        "# Errors",
        "",
        "Every refusal has a code, a gRPC status, a sentence and a hint. Words in braces are filled in.",
        "This page is made by `python -m wire.errors > docs/errors.md`.",
        "",
        "| code | gRPC status | what it says | what to do |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| `{fault.code}` | {fault.status.name} | {fault.sentence} | {fault.hint} |"
        for fault in CATALOGUE.values()
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    print(catalogue_page())

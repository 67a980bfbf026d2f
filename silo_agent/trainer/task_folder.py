"""What the private side keeps of one task: its definition, every ballot cast, the learner's state."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any, Final, Protocol

from silo_agent.trainer.models.stored import dump, load
from wire.errors import ConfigurationError
from wire.runtime.files import write_atomically
from wire.task.definition import TaskDefinition

FINAL_CONSENSUS: Final = "consensus"
"""Under this name the last consensus of a finished task is kept, packed in the index encoding."""

# A ballot behind its record; and a ballot alone, as versions up to 0.1 wrote it, its record in a slip beside it.
_KEPT: Final = ".kept"
_EARLIER: Final = ".bin"


class Folder(Protocol):
    """What a task leaves behind at home, wherever it is kept; see `TaskFolder`."""

    def rounds_voted(self) -> tuple[int, ...]: ...  # noqa: D102
    def ballot(self, round_number: int) -> bytes | None: ...  # noqa: D102
    def kept_ballot(self, round_number: int) -> tuple[bytes, bytes] | None: ...  # noqa: D102
    def keep_ballot(self, round_number: int, ballot: bytes, record: bytes) -> None: ...  # noqa: D102
    def get(self, name: str) -> bytes | None: ...  # noqa: D102
    def put(self, name: str, content: bytes) -> None: ...  # noqa: D102
    def learner(self, round_number: int) -> Any | None: ...  # noqa: D102
    def latest_learner(self, before: int) -> Any | None: ...  # noqa: D102
    def keep_learner(self, round_number: int, learner: Any) -> None: ...  # noqa: D102
    def keep_model(self, model: Any) -> None: ...  # noqa: D102
    def model_path(self) -> Path | None: ...  # noqa: D102


class TaskFolder:
    """A folder named by the task's digest. Every file in it is whole or not there."""

    def __init__(self, root: Path, digest: str) -> None:
        self._folder = root / digest

    def keep_definition(self, definition: TaskDefinition) -> None:
        """Remembers which task this is."""
        path = self._folder / "definition.json"
        if not path.exists():
            write_atomically(path, definition.canonical().encode())

    @property
    def has_definition(self) -> bool:
        """True if the task was laid before this silo."""
        return (self._folder / "definition.json").exists()

    def definition(self) -> TaskDefinition:
        """The task it is the folder of."""
        path = self._folder / "definition.json"
        return TaskDefinition.model_validate_json(path.read_text("utf-8"))

    def rounds_voted(self) -> tuple[int, ...]:
        """The rounds for which a ballot was made."""
        found = (path for end in (_KEPT, _EARLIER) for path in self._folder.glob(f"ballot-*{end}"))
        return tuple(sorted({int(path.stem.removeprefix("ballot-")) for path in found}))

    def ballot(self, round_number: int) -> bytes | None:
        """The ballot of a round, if it was made before; whether it was paid for, the ledger knows."""
        kept = self.kept_ballot(round_number)
        return None if kept is None else kept[0]

    def kept_ballot(self, round_number: int) -> tuple[bytes, bytes] | None:
        """The ballot of a round and its JSON record; None if there is none.

        They come from one file and belong together. Of a folder that an earlier version wrote they come from two, of
        which a crash may have replaced one: the caller compares them.
        """
        path = self._ballot_path(round_number, _KEPT)
        if path.exists():
            record, _, ballot = path.read_bytes().partition(b"\n")
            return ballot, record
        earlier, slip = self._ballot_path(round_number, _EARLIER), self._slip_path(round_number)
        if earlier.exists() and slip.exists():
            return earlier.read_bytes(), slip.read_bytes()
        return None

    def keep_ballot(self, round_number: int, ballot: bytes, record: bytes) -> None:
        """Stores a ballot and its record, a single line, in one step; must be called before the ballot is handed out."""
        write_atomically(self._ballot_path(round_number, _KEPT), record + b"\n" + ballot)
        # From here on they are not read.
        self._ballot_path(round_number, _EARLIER).unlink(missing_ok=True)
        self._slip_path(round_number).unlink(missing_ok=True)

    def get(self, name: str) -> bytes | None:
        """What was kept under a name, if anything."""
        path = self._kept_path(name)
        return path.read_bytes() if path.exists() else None

    def put(self, name: str, content: bytes) -> None:
        """Keeps what a privacy mechanism needs later, or the final consensus. It stays at home."""
        write_atomically(self._kept_path(name), content)

    def learner(self, round_number: int) -> Any | None:
        """The learner as it was after round `round_number`."""
        path = self._learner_path(round_number)
        return load(path) if path.exists() else None

    def latest_learner(self, before: int) -> Any | None:
        """The learner as it was after the last round before `before`, if there was one."""
        known = sorted(self._folder.glob("learner-*.joblib"))
        earlier = [path for path in known if path < self._learner_path(before)]
        return load(earlier[-1]) if earlier else None

    def keep_learner(self, round_number: int, learner: Any) -> None:
        """Keeps the learner's state after a round, and only the one before it besides."""
        write_atomically(self._learner_path(round_number), dump(learner))
        for path in sorted(self._folder.glob("learner-*.joblib"))[:-2]:
            path.unlink()

    def keep_model(self, model: Any) -> None:
        """Keeps the final model. It stays at home."""
        write_atomically(self._folder / "model.joblib", dump(model))

    def model_path(self) -> Path | None:
        """Where the final model is, once the task has finished."""
        path = self._folder / "model.joblib"
        return path if path.exists() else None

    def _ballot_path(self, round_number: int, end: str) -> Path:
        return self._folder / f"ballot-{round_number:06d}{end}"

    def _slip_path(self, round_number: int) -> Path:
        return self._folder / f"slip-{round_number:06d}.json"

    def _kept_path(self, name: str) -> Path:
        return self._folder / f"kept-{name}"

    def _learner_path(self, round_number: int) -> Path:
        return self._folder / f"learner-{round_number:06d}.joblib"


def undecided(root: Path, decided: Collection[str]) -> int:
    """How many definitions laid before this silo have a digest that is not in `decided`."""
    return sum(path.parent.name not in decided for path in root.glob("*/definition.json"))


def seen_tasks(root: Path) -> list[TaskDefinition]:
    """Every definition ever laid before this silo, oldest first."""
    paths = sorted(root.glob("*/definition.json"), key=lambda path: path.stat().st_mtime)
    return [TaskDefinition.model_validate_json(path.read_text("utf-8")) for path in paths]


def find_task(root: Path, name: str) -> TaskFolder:
    """The folder of the task called `name`; of several definitions the newest, with a model if one has."""
    digests = [task.digest for task in seen_tasks(root) if task.name == name]
    found = [TaskFolder(root, digest) for digest in reversed(digests)]
    if not found:
        raise ConfigurationError(
            f"This silo has never heard of a task called {name}.",
            "See the tasks laid before it with `consilium agent tasks`.",
        )
    return next((folder for folder in found if folder.model_path()), found[0])

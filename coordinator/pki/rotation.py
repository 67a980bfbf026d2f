"""The consortium's authorities over time: the one that signs and, while it replaces another, that other.

An authority is replaced in two steps. From `begin` on the new one signs members, everyone is told to trust both,
and the server still shows a certificate of the old one, because that is the one silos know. They learn the new
one by renewing. After `finish` only the new one counts.

`rotation.json` in the authority's folder says which generations sign and serve; it is replaced in one step, so
that a crash leaves the state before or after. Generation 1 lies in the folder itself, later ones below it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from coordinator.pki.authority import Authority
from wire.errors import ConfigurationError
from wire.runtime.files import write_atomically

_STATE = "rotation.json"


@dataclass(frozen=True)
class Authorities:
    """Whom the consortium trusts now."""

    signing: Authority
    """Signs members."""
    previous: Authority | None = None
    """During a rotation the one before; it still signs the server's certificate."""

    @property
    def serving(self) -> Authority:
        """Signs the server's certificate, and is what a join token pins."""
        return self.previous or self.signing

    @property
    def bundle_pem(self) -> bytes:
        """Every authority members and the server trust, the one that signs first."""
        before = self.previous.certificate_pem if self.previous else b""
        return self.signing.certificate_pem + before

    @classmethod
    def load(cls, folder: Path) -> Authorities:
        """Reads the folder; ConfigurationError if something is missing or damaged."""
        state = _State.read(folder)
        signing = Authority.load(_generation(folder, state.signing))
        if state.serving == state.signing:
            return cls(signing)
        return cls(signing, Authority.load(_generation(folder, state.serving)))


def prepare(folder: Path, now: datetime) -> Authority:
    """Creates the next authority, or loads the one an interrupted rotation created; it signs nothing yet."""
    state = _State.read(folder)
    if state.serving != state.signing:
        raise ConfigurationError(
            "The authority is already being replaced.",
            "Finish it with `consilium coordinator rotate-authority --finish`.",
        )
    current = Authority.load(_generation(folder, state.signing))
    number = state.signing + 1
    next_folder = _generation(folder, number)
    try:
        return Authority.create(next_folder, current.consortium, now, generation=number)
    except ConfigurationError:
        return Authority.load(next_folder)


def begin(folder: Path) -> Authorities:
    """The prepared authority signs from now on; the one before goes on serving."""
    state = _State.read(folder)
    Authority.load(_generation(folder, state.signing + 1))
    _State(signing=state.signing + 1, serving=state.signing).write(folder)
    return Authorities.load(folder)


def finish(folder: Path) -> Authorities:
    """Ends the trust in the authority before and destroys its key; its certificate is kept."""
    state = _State.read(folder)
    if state.serving == state.signing:
        raise ConfigurationError(
            "The authority is not being replaced.",
            "Begin with `consilium coordinator rotate-authority`.",
        )
    _State(signing=state.signing, serving=state.signing).write(folder)
    Authority.destroy_key(_generation(folder, state.serving))
    return Authorities.load(folder)


def watched_files(folder: Path) -> list[Path]:
    """Files whose change may mean that the authorities changed."""
    return [folder / _STATE, folder]


@dataclass(frozen=True)
class _State:
    """The generations that sign members and the server's certificate."""

    signing: int = 1
    serving: int = 1

    @classmethod
    def read(cls, folder: Path) -> _State:
        path = folder / _STATE
        try:
            values = json.loads(path.read_bytes())
            return cls(int(values["signing"]), int(values["serving"]))
        except FileNotFoundError:
            return cls()
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigurationError(
                f"{path} is damaged.", "Restore it from the backup of its folder."
            ) from error

    def write(self, folder: Path) -> None:
        write_atomically(folder / _STATE, json.dumps(vars(self)).encode())


def _generation(folder: Path, number: int) -> Path:
    return folder if number == 1 else folder / str(number)

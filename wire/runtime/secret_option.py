"""A secret given to a command: as it is, or better as `@FILE`, since every account of a machine sees command lines."""

from __future__ import annotations

from pathlib import Path

from wire.errors import ConfigurationError

_MOST_BYTES = 64 << 10


def secret_text(given: str) -> str:
    """The secret as given, or the content of @FILE without the white space around it.

    ConfigurationError names the file and never quotes its content.
    """
    if not given.startswith("@"):
        return given
    path = Path(given[1:])
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
        text = content.decode()
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"{path} is no text file.") from None
    if len(content) > _MOST_BYTES:
        raise ConfigurationError(f"{path} is too long to hold a secret.")
    return text.strip()

"""What crosses a boundary: generated stubs, ballots, identities, channels, errors."""

__version__ = "0.1.0"
PROTOCOL_VERSION = 1
"""What this release speaks. A coordinator also speaks the version before, so it is upgraded first."""
OLDEST_PROTOCOL_VERSION = 1
"""The oldest version a coordinator of this release still serves; there is none before 1."""

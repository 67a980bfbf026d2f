"""What crosses a boundary: generated stubs, ballots, identities, channels, errors."""

__version__ = "0.1.0"
PROTOCOL_VERSION = 1

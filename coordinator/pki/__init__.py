"""The consortium's certificates: the authority, its rotation, and the server's own credentials."""

"""The hospital's own rows: read, checked against the public schema, encoded."""

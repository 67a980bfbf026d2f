"""Two measurements of privacy: what it costs in accuracy, and what an attacker finds without it."""

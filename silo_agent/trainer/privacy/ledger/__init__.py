"""The privacy ledger: every release is written before it leaves; ε is derived."""

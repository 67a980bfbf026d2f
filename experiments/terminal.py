"""Consoles of the experiments, which show only what they made themselves and so may use rich's markup."""

from rich.console import Console

console = Console(highlight=False, soft_wrap=True)
errors = Console(stderr=True, highlight=False, soft_wrap=True)

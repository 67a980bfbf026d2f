"""Coverage-guided fuzzing of one target by atheris: `python tests/fuzz/guided.py ballot -runs=20000`.

Whatever follows the target's name is libFuzzer's. An input that ends in anything but a documented error is
written to a file `crash-…` in the current folder; feed it to the same command to see it again.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import atheris
import structlog

with atheris.instrument_imports(include=["wire", "coordinator", "silo_agent"]):
    # The whole coordinator takes seconds to instrument.
    if sys.argv[1:2] == ["servicers"]:
        from servicers import SERVICERS as TARGET
    else:
        from targets import TARGETS

        TARGET = TARGETS[sys.argv[1]]

# Beyond these an input counts as a hang, also on a busy machine, or as an attack on memory.
_LIMITS = ["-timeout=120", "-rss_limit_mb=2048", "-malloc_limit_mb=512", "-max_len=4096"]


def main() -> None:
    """Fuzzes until `-runs` are done or something is found."""
    # A line for each of thousands of calls tells nobody anything.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    name, *options = sys.argv[1:]
    corpus = Path(tempfile.mkdtemp(prefix=f"consilium-{name}-"))
    for number, seed in enumerate(TARGET.seeds()):
        (corpus / f"seed-{number}").write_bytes(seed)
    atheris.Setup([sys.argv[0], *_LIMITS, *options, str(corpus)], TARGET)
    atheris.Fuzz()


if __name__ == "__main__":
    main()

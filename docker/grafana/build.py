"""Writes docker/grafana/dashboards; with --check only says whether they are what this would write."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pages import DASHBOARDS

FOLDER = Path(__file__).parent / "dashboards"


def main() -> int:
    """0 if the files are, or now are, up to date."""
    wanted = {
        FOLDER / side / f"{page.name}.json": json.dumps(page.json(), indent=2, ensure_ascii=False)
        + "\n"
        for side, pages in DASHBOARDS.items()
        for page in pages
    }
    found = {path: path.read_text(encoding="utf-8") for path in FOLDER.rglob("*.json")}
    if "--check" in sys.argv[1:]:
        if found != wanted:
            print("docker/grafana/dashboards is stale: run python docker/grafana/build.py")
        return int(found != wanted)
    for path in found.keys() - wanted.keys():
        path.unlink()
    for path, text in wanted.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

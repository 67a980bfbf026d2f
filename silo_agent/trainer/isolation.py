"""Gives up the network: the trainer enters an empty network namespace where the kernel allows it."""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from wire.consilium.v1 import trainer_pb2

_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000


class Mode(StrEnum):
    """How the trainer is kept from the network."""

    OWN_NAMESPACE = "own namespace"
    CONTAINER = "container"
    NONE = "none"


@dataclass(frozen=True)
class Isolation:
    """The mode, and in words what it means."""

    mode: Mode
    note: str

    def to_proto(self) -> trainer_pb2.Isolation.ValueType:
        """The mode as the wire carries it."""
        return _PROTO[self.mode]


_PROTO = {
    Mode.OWN_NAMESPACE: trainer_pb2.ISOLATION_OWN_NAMESPACE,
    Mode.CONTAINER: trainer_pb2.ISOLATION_CONTAINER,
    Mode.NONE: trainer_pb2.ISOLATION_NONE,
}


def give_up_network() -> Isolation:
    """Leaves the host's network for good. Call before any thread is started.

    A Unix socket on the file system still works across namespaces; nothing else does.
    """
    if only_loopback():
        return Isolation(Mode.CONTAINER, "started without any outside network interface")
    # Root may unshare the network alone; others need a user namespace of their own around it.
    flags = _CLONE_NEWNET if os.geteuid() == 0 else _CLONE_NEWUSER | _CLONE_NEWNET
    uid, gid = os.geteuid(), os.getegid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(flags) != 0:
        reason = os.strerror(ctypes.get_errno())
        return Isolation(
            Mode.NONE,
            f"the kernel refused a network namespace ({reason}); "
            "run the trainer in a container without network instead",
        )
    if flags & _CLONE_NEWUSER:
        _keep_user(uid, gid)
    return Isolation(Mode.OWN_NAMESPACE, "entered an empty network namespace of its own")


def only_loopback() -> bool:
    """True if this process can see no network interface but loopback."""
    names = {line.split(":")[0].strip() for line in _device_lines()}
    return names <= {"lo"}


def _device_lines() -> list[str]:
    # /proc/self/net follows the namespace of the reader; /sys/class/net that of whoever mounted it.
    return Path("/proc/self/net/dev").read_text(encoding="ascii").splitlines()[2:]


def _keep_user(uid: int, gid: int) -> None:
    """Maps the caller's own ids into the new user namespace, so that files keep their owner."""
    Path("/proc/self/setgroups").write_text("deny", encoding="ascii")
    Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1", encoding="ascii")
    Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1", encoding="ascii")

"""`helm test`: a pod with the trainer's policies gets nothing out, by any of the ways that are open in every cluster without policies.

What counts as a wall: silence, "unreachable" and "not permitted". Calico, Cilium, Antrea, OVN-Kubernetes and the clouds' own plug-ins
drop what they deny. What does not: an answer, of course, but also "refused", which is what a packet meets that did get out and found
nobody. kube-router (k3s) refuses what it denies; where that is so, `networkPolicy.rejects` says it and the last argument is given. It
is then the API server that proves the wall: it listens, so who gets out to it is not refused.
"""

import errno
import ipaddress
import os
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

# In a row: policies may take a moment to arrive, and a single silence may be a lost packet.
TIMES = 5
DENIED = {errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EPERM, errno.EACCES}
REFUSED = {errno.ECONNREFUSED, errno.ECONNRESET}
# A question for the name `kubernetes.default.svc`, which any resolver answers, if only with "no such name".
QUESTION = (
    b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00"
    b"\x0akubernetes\x07default\x03svc\x00\x00\x01\x00\x01"
)

Way = tuple[str, str, int]


def ways(environment: dict[str, str], resolver: str) -> list[Way]:
    """Where every pod can go unless a policy forbids it: the API server, and the resolvers that /etc/resolv.conf names, if any."""
    found = [
        ("TCP", environment["KUBERNETES_SERVICE_HOST"], int(environment["KUBERNETES_SERVICE_PORT"]))
    ]
    for line in resolver.splitlines():
        match line.split():
            # One inside the pod is no way out.
            case ["nameserver", address, *_] if not ipaddress.ip_address(address).is_loopback:
                found += [("UDP", address, 53), ("TCP", address, 53)]
    return found


def tried(way: Way, patience: float = 3.0) -> str:
    """`open`, `denied`, `refused`, or an error that proves nothing."""
    protocol, host, port = way
    kind = socket.SOCK_STREAM if protocol == "TCP" else socket.SOCK_DGRAM
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, kind) as talk:
        talk.settimeout(patience)
        try:
            talk.connect((host, port))
            if protocol == "UDP":
                talk.send(QUESTION)
                talk.recv(512)
        except TimeoutError:
            return "denied"
        except OSError as error:
            if error.errno in DENIED:
                return "denied"
            return "refused" if error.errno in REFUSED else str(error)
    return "open"


def named(way: Way) -> str:
    """A way as a person reads it."""
    return "{} {} port {}".format(*way)


def main(patience: float, pause: float, wall: set[str], out: list[Way]) -> str | None:
    """What is wrong with the wall; None if every way was closed so many times in a row."""
    end, in_a_row = time.monotonic() + patience, 0
    with ThreadPoolExecutor(len(out)) as together:
        while True:
            found = dict(zip(out, together.map(tried, out), strict=True))
            gaps = [f"{named(way)} {said}" for way, said in found.items() if said not in wall]
            in_a_row = 0 if gaps else in_a_row + 1
            if in_a_row == TIMES:
                return None
            if gaps and time.monotonic() >= end:
                break
            time.sleep(pause)
    if "open" in found.values():
        verdict = "this cluster does not enforce policies, or another one opens the wall"
    else:
        verdict = (
            "that proves no wall, because a packet that got out could meet the same. If the network plug-in is known to refuse "
            "what it denies (kube-router, k3s), set networkPolicy.rejects"
        )
    return (
        f"A pod under the trainer's NetworkPolicy tried to get out ({'; '.join(gaps)}): {verdict}. "
        "Do not train here before this test passes (docs/deploy-kubernetes.md)."
    )


if __name__ == "__main__":
    closed = {"denied", "refused"} if "refused-is-denied" in sys.argv else {"denied"}
    all_ways = ways(dict(os.environ), Path("/etc/resolv.conf").read_text())
    if wrong := main(float(sys.argv[1]), float(sys.argv[2]), closed, all_ways):
        sys.exit(wrong)
    print("No way out:", "; ".join(map(named, all_ways)))

"""Why a TLS connection to the coordinator fails, in words a hospital's IT can act on.

gRPC reports every such failure as `UNAVAILABLE: Socket closed`. This module dials the same address once more
with Python's own TLS and looks where it breaks: clock, name, port, proxy, trust, or our certificate.
"""

from __future__ import annotations

import base64
import http.client
import socket
import ssl
from datetime import UTC, datetime
from urllib.parse import SplitResult, unquote, urlsplit

from cryptography import x509

from wire.errors import (
    CERTIFICATE_EXPIRED,
    CERTIFICATE_NOT_YET_VALID,
    SERVER_UNTRUSTED,
    TLS_REFUSED,
    UNREACHABLE,
    ConfigurationError,
    Fault,
    Refusal,
)
from wire.identity import IdentityFiles, signed_by

# OpenSSL's codes for why a server's certificate was not accepted.
_NOT_YET_VALID, _EXPIRED = 9, 10
_OTHER_NAME = {62, 64}
_NOT_TLS = {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "UNKNOWN_PROTOCOL"}
_ALERTS = {
    "UNKNOWN_CA": "it does not trust the authority that issued it",
    "CERTIFICATE_EXPIRED": "it holds it for expired",
    "CERTIFICATE_REVOKED": "it has been revoked",
    "CERTIFICATE_REQUIRED": "it asks for one and none was presented",
    "BAD_CERTIFICATE": "it cannot read it",
    "CERTIFICATE_UNKNOWN": "it does not accept it",
    "UNSUPPORTED_CERTIFICATE": "it does not accept its kind",
    "ACCESS_DENIED": "it denies access",
    "HANDSHAKE_FAILURE": "they share no way to talk, or none was presented",
}
_JOIN_AGAIN = (
    "Ask the admin whether the consortium's authority was replaced, then join with a new token."
)


def split_address(address: str) -> tuple[str, int]:
    """`host:port` or `[v6]:port` taken apart; ConfigurationError if it is neither."""
    try:
        parts = urlsplit(f"//{address}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host or port is None or parts.netloc != address or parts.username is not None:
        raise ConfigurationError(
            f"{address!r} is not an address.",
            "Write it as host:port, e.g. coordinator.example.org:7443.",
        )
    return host, port


def diagnose(
    address: str,
    files: IdentityFiles | None,
    *,
    now: datetime,
    authorities_pem: bytes | None = None,
    proxy: str | None = None,
    wrong_authority: Fault = SERVER_UNTRUSTED,
    timeout: float = 5.0,
) -> Refusal | None:
    """What is wrong between here and `address`, or None if a connection now succeeds. Blocks.

    Trusts `authorities_pem`, else those of `files`, else anyone. `proxy` is an http:// URL, `timeout` is in
    seconds and holds for each step. `wrong_authority` is the fault to report for a server of someone else's.
    """
    if files is not None and (ours := _own_clock(files, now)) is not None:
        return ours
    trusted = authorities_pem or (files.authorities_pem if files else None)
    connection = _connect(address, proxy, timeout)
    if isinstance(connection, Refusal):
        return connection
    host, port = split_address(address)
    with connection:
        try:
            with _context(trusted, files).wrap_socket(connection, server_hostname=host) as tls:
                return _after_handshake(tls, address, files)
        except ssl.SSLCertVerificationError as error:
            verification = error
        except (ssl.SSLError, OSError) as error:
            return _broken_handshake(error, address, port, files, timeout)
    return _untrusted(verification, address, host, proxy, wrong_authority, timeout)


def _own_clock(files: IdentityFiles, now: datetime) -> Refusal | None:
    ours = files.certificate
    if now >= ours.not_after:
        return Refusal(CERTIFICATE_EXPIRED, name=files.name, expired=_moment(ours.not_after))
    if now < ours.not_before:
        return Refusal(
            CERTIFICATE_NOT_YET_VALID,
            name=files.name,
            begins=_moment(ours.not_before),
            now=_moment(now),
        )
    return None


def _connect(address: str, proxy: str | None, timeout: float) -> socket.socket | Refusal:
    host, port = split_address(address)
    via = urlsplit(proxy) if proxy else None
    dialled, there = (via.netloc.rpartition("@")[2], "the proxy ") if via else (address, "")
    try:
        if via is None:
            return socket.create_connection((host, port), timeout)
        return _tunnel(via, host, port, timeout)
    except socket.gaierror:
        why = f"the name of {there}{dialled} cannot be resolved here"
    except ConnectionRefusedError:
        why = f"nothing listens at {there}{dialled} (connection refused)"
    except TimeoutError:
        why = (
            f"no answer from {there}{dialled} within {timeout:g} s; a firewall may drop the packets"
        )
    except http.client.HTTPException:
        why = f"{there}{dialled} does not speak HTTP"
    except OSError as error:
        why = f"{there}{dialled}: {error.strerror or error}"
    return Refusal(UNREACHABLE, address=address, why=why)


def _tunnel(via: SplitResult, host: str, port: int, timeout: float) -> socket.socket:
    connection = http.client.HTTPConnection(via.hostname or "", via.port or 80, timeout=timeout)
    headers = {}
    if via.username is not None:
        user = f"{unquote(via.username)}:{unquote(via.password or '')}"
        headers["Proxy-Authorization"] = f"Basic {base64.b64encode(user.encode()).decode()}"
    connection.set_tunnel(host, port, headers)
    connection.connect()
    tunnel: socket.socket = connection.sock
    return tunnel


def _context(trusted: bytes | None, files: IdentityFiles | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["h2"])
    if trusted is None:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    else:
        context.load_verify_locations(cadata=trusted.decode("ascii"))
    if files is not None:
        context.load_cert_chain(files.certificate_path, files.key_path)
    return context


def _after_handshake(
    tls: ssl.SSLSocket, address: str, files: IdentityFiles | None
) -> Refusal | None:
    # In TLS 1.3 a server judges our certificate after our side of the handshake is complete. A gRPC server
    # that accepts us speaks first (its settings); one that does not closes without an alert.
    try:
        if tls.recv(1):
            return None
    except TimeoutError:
        return None
    except ssl.SSLError as error:
        if (alert := _alert(error)) is not None:
            return _refused(address, files, alert)
    except ConnectionError:
        pass
    return _refused(address, files, None)


def _broken_handshake(
    error: OSError, address: str, port: int, files: IdentityFiles | None, timeout: float
) -> Refusal:
    if isinstance(error, ssl.SSLError) and (alert := _alert(error)) is not None:
        return _refused(address, files, alert)
    if isinstance(error, TimeoutError):
        why = f"port {port} took the connection but did not answer TLS within {timeout:g} s"
    elif isinstance(error, ssl.SSLEOFError | ConnectionError):
        why = "the connection was cut during the TLS handshake; a firewall or proxy may forbid it"
    elif isinstance(error, ssl.SSLError) and error.reason in _NOT_TLS:
        why = f"port {port} there does not speak TLS"
    else:
        why = f"the TLS handshake failed ({getattr(error, 'reason', None) or error})"
    return Refusal(UNREACHABLE, address=address, why=why)


def _alert(error: ssl.SSLError) -> str | None:
    _, marker, alert = (error.reason or "").partition("_ALERT_")
    return _ALERTS.get(alert, f"it answered {alert.lower()}") if marker else None


def _refused(address: str, files: IdentityFiles | None, alert: str | None) -> Refusal:
    if files is None:
        why = "it asks for a certificate and none was presented"
        hint = "Join first: `consilium agent join TOKEN`; if you have a token, dial the enrolment port."
        return Refusal(TLS_REFUSED, address=address, why=why, hint=hint)
    if not signed_by(files.certificate_pem, files.authorities_pem):
        why = f"it was issued by {files.certificate.issuer}, not by the consortium's authority"
        return Refusal(TLS_REFUSED, address=address, why=why, hint=_JOIN_AGAIN)
    if alert is not None:
        return Refusal(TLS_REFUSED, address=address, why=alert, hint=_JOIN_AGAIN)
    why = "it ended the connection on seeing it, without a reason"
    hint = f"Ask the admin whether the coordinator's clock is right. {_JOIN_AGAIN}"
    return Refusal(TLS_REFUSED, address=address, why=why, hint=hint)


def _untrusted(
    error: ssl.SSLCertVerificationError,
    address: str,
    host: str,
    proxy: str | None,
    wrong_authority: Fault,
    timeout: float,
) -> Refusal:
    if error.verify_code == _EXPIRED:
        why = "its certificate has expired, or this machine's clock is ahead"
    elif error.verify_code == _NOT_YET_VALID:
        why = "its certificate is not valid yet, or this machine's clock is behind"
    elif error.verify_code in _OTHER_NAME:
        why = f"its certificate is not for the name {host}"
    else:
        issuer = _issuer_there(address, host, proxy, timeout)
        why = f"its certificate was issued by {issuer}, not by the consortium's authority"
        return Refusal(wrong_authority, address=address, why=why)
    return Refusal(SERVER_UNTRUSTED, address=address, why=why)


def _issuer_there(address: str, host: str, proxy: str | None, timeout: float) -> str:
    """Who signed the certificate shown at `address`: names the firewall that intercepts TLS."""
    connection = _connect(address, proxy, timeout)
    if isinstance(connection, Refusal):
        return "someone else"
    with connection:
        try:
            with _context(None, None).wrap_socket(connection, server_hostname=host) as tls:
                shown = x509.load_der_x509_certificate(tls.getpeercert(binary_form=True) or b"")
        except (OSError, ValueError):
            return "someone else"
    return shown.issuer.rfc4514_string()


def _moment(time: datetime) -> str:
    return time.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")

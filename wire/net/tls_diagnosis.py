"""Finds out why a TLS connection to the coordinator fails, in words a hospital's IT can use.

gRPC reports every such failure as `UNAVAILABLE: Socket closed`. This module connects to the same address once
more with Python's own TLS and sees where it fails: clock, name, port, proxy, trust, or our certificate.
"""

from __future__ import annotations

import socket
import ssl
from datetime import UTC, datetime
from ipaddress import ip_address

from cryptography import x509
from cryptography.x509.oid import NameOID

from wire.errors import (
    CERTIFICATE_NOT_YET_VALID,
    CLOCK_SKEW,
    SERVER_UNTRUSTED,
    TLS_INTERCEPTED,
    TLS_REFUSED,
    UNREACHABLE,
    Fault,
    Refusal,
)
from wire.identity.certificates import certificate_from_der, certificates_in
from wire.identity.files import IdentityFiles
from wire.identity.identity import Certificate, Role, describe, expiry_refusal, signed_by
from wire.net.dialling import Route
from wire.net.proxy import Proxy

# OpenSSL's codes for why a server's certificate was not accepted.
_NOT_YET_VALID, _EXPIRED = 9, 10
_OTHER_PURPOSE = 26
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


def diagnose(
    address: str,
    files: IdentityFiles | None,
    *,
    now: datetime,
    authorities_pem: bytes | None = None,
    proxy: Proxy | None = None,
    wrong_authority: Fault = SERVER_UNTRUSTED,
    timeout: float = 5.0,
) -> Refusal | None:
    """Why connecting to `address` fails, or None if it now succeeds. Blocks.

    Trusts `authorities_pem`, else those of `files`, else any server. `timeout` is in seconds, for each step.
    `wrong_authority` is the fault to report for a server of another authority.
    """
    trusted = authorities_pem or (files.authorities_pem if files else None)
    route = Route(address, proxy, timeout)
    own_validity: Refusal | None = None
    try:
        if files is not None:
            require_currently_valid(files, now)
    except Refusal as refusal:
        own_validity = refusal
    try:
        with route.open() as connection:
            tls_handshake(connection, route, trusted, files, wrong_authority)
    except Refusal as refusal:
        return refusal if own_validity is None or refusal.is_a(CLOCK_SKEW) else own_validity
    if own_validity is not None:
        # Not valid by our clock, accepted by the coordinator's.
        why = f"it accepts a certificate that is not valid here, where it is {_moment(now)}"
        return Refusal(CLOCK_SKEW, address=address, why=why)
    return None


def require_currently_valid(files: IdentityFiles, now: datetime) -> None:
    """Raises Refusal if our own certificate is not valid at `now`."""
    ours = files.certificate
    if now >= ours.not_after:
        raise expiry_refusal(ours)
    if now < ours.not_before:
        raise Refusal(
            CERTIFICATE_NOT_YET_VALID,
            name=files.name,
            begins=_moment(ours.not_before),
            now=_moment(now),
        )


def tls_handshake(
    connection: socket.socket,
    route: Route,
    trusted: bytes | None,
    files: IdentityFiles | None,
    wrong_authority: Fault = SERVER_UNTRUSTED,
) -> Certificate:
    """The server's certificate, after both ends have accepted each other's; else raises Refusal.

    `connection` leads to `route.address` and is closed. TLS_REFUSED means that the server is the right one and
    does not accept our certificate; every other refusal concerns the server or the way there.
    """
    try:
        with _context(trusted, files).wrap_socket(connection, server_hostname=route.host) as tls:
            shown = tls.getpeercert(binary_form=True) or b""
            _await_acceptance(tls, route, files)
    except ssl.SSLCertVerificationError as error:
        verification = error
    except (ssl.SSLError, OSError) as error:
        raise _broken_handshake(error, route, files) from None
    else:
        server = describe(certificate_from_der(shown))
        if files is not None:
            _require_our_coordinator(server, route, files)
        return server
    raise _untrusted(verification, route, trusted, wrong_authority)


def _require_our_coordinator(server: Certificate, route: Route, files: IdentityFiles) -> None:
    """SERVER_UNTRUSTED unless the certificate is that of a coordinator of our consortium."""
    identity = server.identity
    found = (identity.consortium, identity.role) if identity else None
    if found != (files.consortium, Role.COORDINATOR):
        why = f"its certificate is not that of the coordinator of {files.consortium}"
        raise Refusal(SERVER_UNTRUSTED, address=route.address, why=why)


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


def _await_acceptance(tls: ssl.SSLSocket, route: Route, files: IdentityFiles | None) -> None:
    # In TLS 1.3 a server judges our certificate after our side of the handshake is complete. A gRPC server
    # that accepts us speaks first (its settings); one that does not closes without an alert.
    alert = None
    try:
        if tls.recv(1):
            return
    except TimeoutError:
        return
    except ssl.SSLError as error:
        alert = _alert(error)
    except ConnectionError:
        pass
    raise _refused(route.address, files, alert)


def _broken_handshake(error: OSError, route: Route, files: IdentityFiles | None) -> Refusal:
    if isinstance(error, ssl.SSLError) and (alert := _alert(error)) is not None:
        return _refused(route.address, files, alert)
    port = route.address.rpartition(":")[2]
    if isinstance(error, TimeoutError):
        why = f"port {port} took the connection but did not answer TLS within {route.timeout:g} s"
    elif isinstance(error, ssl.SSLEOFError | ConnectionError):
        why = "the connection was cut during the TLS handshake; a firewall or proxy may forbid it"
    elif isinstance(error, ssl.SSLError) and error.reason in _NOT_TLS:
        why = f"port {port} there does not speak TLS"
    else:
        why = f"the TLS handshake failed ({getattr(error, 'reason', None) or error})"
    return Refusal(UNREACHABLE, address=route.address, why=why)


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
    if alert == _ALERTS["CERTIFICATE_EXPIRED"]:
        until = _moment(files.certificate.not_after)
        why = f"it holds our certificate for expired, which is valid until {until}"
        return Refusal(CLOCK_SKEW, address=address, why=why)
    if alert is not None:
        return Refusal(TLS_REFUSED, address=address, why=alert, hint=_JOIN_AGAIN)
    why = "it ended the connection on seeing it, without a reason"
    hint = f"Ask the admin whether the coordinator's clock is right. {_JOIN_AGAIN}"
    return Refusal(TLS_REFUSED, address=address, why=why, hint=hint)


def _untrusted(
    error: ssl.SSLCertVerificationError,
    route: Route,
    trusted: bytes | None,
    wrong_authority: Fault,
) -> Refusal:
    fault = SERVER_UNTRUSTED
    if error.verify_code in (_EXPIRED, _NOT_YET_VALID):
        # The coordinator renews its certificate long before the end, so one of the clocks is wrong.
        fault = CLOCK_SKEW
        why = _outside_its_time(_server_certificate(route), expired=error.verify_code == _EXPIRED)
    elif error.verify_code in _OTHER_NAME:
        why = f"its certificate is not for the name {route.host}"
    elif error.verify_code == _OTHER_PURPOSE:
        why = "its certificate is not a server's"
    else:
        shown = _server_certificate(route)
        issuer = shown.issuer.rfc4514_string() if shown else "someone else"
        if shown is not None and _intercepted(shown, route.host, trusted):
            return Refusal(TLS_INTERCEPTED, address=route.address, host=route.host, issuer=issuer)
        fault = wrong_authority
        why = f"its certificate was issued by {issuer}, not by the consortium's authority"
    return Refusal(fault, address=route.address, why=why)


def _outside_its_time(shown: x509.Certificate | None, *, expired: bool) -> str:
    if expired:
        end = f" since {_moment(shown.not_valid_after_utc)}" if shown else ""
        return f"by this machine's clock its certificate has expired{end}"
    begin = f" before {_moment(shown.not_valid_before_utc)}" if shown else " yet"
    return f"by this machine's clock its certificate is not valid{begin}"


def _server_certificate(route: Route) -> x509.Certificate | None:
    """The certificate of the server at the end of `route`, trusted or not."""
    try:
        with (
            route.open() as connection,
            _context(None, None).wrap_socket(connection, server_hostname=route.host) as tls,
        ):
            return certificate_from_der(tls.getpeercert(binary_form=True) or b"")
    except (OSError, ValueError, Refusal):
        return None


def _intercepted(shown: x509.Certificate, host: str, trusted: bytes | None) -> bool:
    """True if another authority issued `shown` for this very host, as firewalls and virus scanners do.

    An issuer with our consortium's name but another key is an authority that was replaced.
    """
    known = certificates_in(trusted) if trusted else []
    ours = {_organisation(authority.subject) for authority in known}
    foreign = _organisation(shown.issuer) not in ours
    return foreign and shown.issuer != shown.subject and _covers(shown, host)


def _organisation(name: x509.Name) -> str:
    found = name.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
    return str(found[0].value) if found else name.rfc4514_string()


def _covers(certificate: x509.Certificate, host: str) -> bool:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return False
    try:
        return ip_address(host) in names.get_values_for_type(x509.IPAddress)
    except ValueError:
        pass
    wanted = {host.lower(), f"*.{host.lower().partition('.')[2]}"}
    return any(name.lower() in wanted for name in names.get_values_for_type(x509.DNSName))


def _moment(time: datetime) -> str:
    return time.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")

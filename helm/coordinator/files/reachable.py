"""`helm test`: both ports answer behind the Service, with a certificate of the name that silos dial."""

import socket
import ssl
import sys

from cryptography import x509

service, host, *ports = sys.argv[1:]
# Whose certificate it is, is looked at below; its authority is known to members only.
context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
context.check_hostname = False
context.verify_mode = ssl.CERT_NONE
context.set_alpn_protocols(["h2"])
for port in ports:
    with (
        socket.create_connection((service, int(port)), timeout=10) as plain,
        context.wrap_socket(plain, server_hostname=host) as secured,
    ):
        certificate = x509.load_der_x509_certificate(secured.getpeercert(binary_form=True) or b"")
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    known = [str(one.value) for one in names]
    if host not in known:
        sys.exit(f"{service}:{port} shows a certificate of {', '.join(known)}, not of {host}.")
    print(f"{service}:{port} answers as {host}.")

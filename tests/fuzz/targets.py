"""Every decoder that sees bytes from outside, as a function of bytes that ends quietly or by a documented error.

A target returns for bytes it accepts, having checked what it may then rely on. Anything but the errors named
beside it is a finding. `test_fuzz.py` feeds them by hypothesis, `guided.py` by atheris (coverage-guided).
"""

from __future__ import annotations

import atexit
import base64
import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from io import BytesIO
from pathlib import Path

import numpy as np
import pyarrow as pa
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding as Form
from google.protobuf.message import DecodeError, Message
from pydantic import ValidationError

from coordinator.api.handshake_log import refusal_in
from coordinator.api.interceptor import address_of
from coordinator.consensus.noise_weights import ballot_weights
from coordinator.pki.authority import Authority
from coordinator.pki.key_request import key_hash
from coordinator.settings import CoordinatorSettings
from silo_agent.agent.audit.file import read_record
from silo_agent.agent.audit.receipts import RecordedReceipt
from silo_agent.agent.audit.recorder import audit_entry
from silo_agent.trainer.approval.record import Act, Approval, ApprovalRecord
from silo_agent.trainer.settings import SiloSettings
from wire.ballot import (
    BallotShape,
    Encoding,
    check,
    class_planes,
    pack,
    pack_scored,
    unpack,
    unpack_one_hot,
    unpack_scored,
)
from wire.consilium.v1 import ballot_pb2, registry_pb2, task_pb2
from wire.errors import ConfigurationError, Refusal
from wire.identity.files import new_key
from wire.identity.identity import Identity, Role, presented_certificate
from wire.identity.join_token import JoinToken
from wire.net.proxy import Proxy
from wire.privacy.declaration import Declaration
from wire.public_content import inspect, write_array, write_table
from wire.receipts import Signer, Statement, verified
from wire.runtime.chain import Head, append
from wire.runtime.configuration import read_yaml
from wire.schema import SetSchema
from wire.task.definition import TaskDefinition

NOW = datetime(2031, 5, 6, 7, 8, 9, tzinfo=UTC)


@dataclass(frozen=True)
class Target:
    """A decoder, the errors it may end with, and inputs it accepts, to begin from."""

    decode: Callable[[bytes], object]
    allowed: tuple[type[Exception], ...] = ()
    seeds: Callable[[], list[bytes]] = list
    runs: int = 20_000
    """How often `guided.py` calls it."""

    def __call__(self, data: bytes) -> None:
        """Any exception that comes out is a finding."""
        with suppress(*self.allowed):
            self.decode(data)


# -- ballots --------------------------------------------------------------------------------------------


def ballot(data: bytes) -> None:
    """Three bytes of shape, then the bits."""
    if len(data) < 3:
        return
    encoding = tuple(Encoding)[data[0] % len(Encoding)]
    shape = BallotShape(1 + (data[0] >> 1), 1 + data[1] % 40, encoding)
    bits = data[3:]
    if data[2] & 1:
        # Half of all inputs have the right length, or nothing would get further.
        bits = (bits * (shape.size_bytes // max(1, len(bits)) + 1) + bytes(shape.size_bytes))[
            : shape.size_bytes
        ]
    check(bits, shape)
    planes = class_planes(bits, shape)
    assert planes.shape == (shape.classes, shape.plane_bytes)
    ones = unpack_one_hot(bits, shape)
    assert ones.shape == (shape.rows, shape.classes)
    if (ones.sum(axis=1) <= 1).all():
        labels = unpack(bits, shape)
        assert labels.min() >= -1
        assert labels.max() < shape.classes
        if encoding is Encoding.SCORED:
            assert pack_scored(*unpack_scored(bits, shape), shape) == bits
        else:
            assert pack(labels, shape) == bits


def ballot_header(data: bytes) -> None:
    """The header of an upload, checked as the coordinator does."""
    header = ballot_pb2.BallotHeader.FromString(data)
    shape = BallotShape(1003, 3, Encoding.INDEX)
    shape.expect_encoding(header.encoding)
    shape.expect_length(header.size_bytes)
    if header.HasField("privacy"):
        declared = Declaration.from_proto(header.privacy)
        assert Declaration.from_proto(declared.to_proto()).epsilon >= declared.epsilon
        assert ballot_weights([declared, Declaration()], shape.classes, shape.encoding)


# -- identities -----------------------------------------------------------------------------------------


@cache
def _authority() -> Authority:
    with tempfile.TemporaryDirectory() as folder:
        return Authority.create(Path(folder) / "authority", "rhine-clinics", NOW)


@cache
def _token() -> JoinToken:
    expiry = NOW + timedelta(days=1)
    return JoinToken.issue(
        "c.example:7444", "rhine-clinics", Role.SILO, "a", expiry, _authority().certificate
    )


def join_token(data: bytes) -> None:
    """The line itself."""
    JoinToken.parse(data.decode("latin-1"))


def join_token_fields(data: bytes) -> None:
    """What is inside a line whose checksum fits."""
    sealed = data + hashlib.sha256(data).digest()[:6]
    line = "consilium-join-1." + base64.urlsafe_b64encode(sealed).decode().rstrip("=")
    token = JoinToken.parse(line)
    assert JoinToken.parse(token.line) == token


def _token_payload() -> bytes:
    text = _token().line.removeprefix("consilium-join-1.")
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))[:-6]


@cache
def _request() -> bytes:
    request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    return request.sign(new_key(), hashes.SHA256()).public_bytes(Form.PEM)


def certificate_request(data: bytes) -> None:
    """What a joining silo sends, in PEM."""
    key_hash(data)


def certificate_request_der(data: bytes) -> None:
    """The same inside its PEM armour."""
    key_hash(_armoured(data, "CERTIFICATE REQUEST"))


def certificate(data: bytes) -> None:
    """What a caller shows; nobody, but never an error."""
    for pem in (data, _armoured(data, "CERTIFICATE")):
        shown = presented_certificate({"x509_pem_cert": [pem]})
        assert shown is None or len(shown.fingerprint) == 64


def name_in_certificate(data: bytes) -> None:
    """A SAN URI is spelled exactly as we would spell it, or nobody's."""
    uri = data.decode("utf-8", "surrogateescape")
    identity = Identity.from_uri(uri)
    assert identity is None or identity.uri == uri


def _armoured(data: bytes, what: str) -> bytes:
    return f"-----BEGIN {what}-----\n{base64.encodebytes(data).decode()}-----END {what}-----\n".encode()


@cache
def _signer() -> Signer:
    issued = _authority().issue_server(["localhost"], timedelta(days=1), NOW)
    return Signer(issued.key_pem, issued.certificate_pem)


_STATEMENT = Statement("rhine-clinics", "stroke", 1, "a", "0" * 64, NOW)


def receipt_signature(data: bytes) -> None:
    """A forged signature proves nothing."""
    signer = _signer()
    pem, authority = signer.certificate_pem, _authority().certificate_pem
    assert not verified(_STATEMENT, data, signer.fingerprint, pem, authority)


def receipt_signer(data: bytes) -> None:
    """Nor does any other certificate."""
    signer = _signer()
    signature = signer.sign(_STATEMENT)
    for pem in (data, _armoured(data, "CERTIFICATE")):
        verified(_STATEMENT, signature, signer.fingerprint, pem, _authority().certificate_pem)
        verified(_STATEMENT, signature, signer.fingerprint, signer.certificate_pem, pem)


# -- definitions ----------------------------------------------------------------------------------------


def task_definition(data: bytes) -> None:
    """What an admin creates and a silo hears of."""
    definition = TaskDefinition.from_proto(task_pb2.TaskDefinition.FromString(data))
    assert TaskDefinition.from_proto(definition.to_proto()) == definition
    assert len(definition.digest) == 64


def set_schema(data: bytes) -> None:
    """What a silo hears of a public set."""
    schema = SetSchema.from_proto(registry_pb2.SetSchema.FromString(data))
    assert SetSchema.from_json(schema.to_json()) == schema


def _definition() -> TaskDefinition:
    return TaskDefinition(name="stroke", public_set="0" * 64, rows=8, labels=("yes", "no"))


def _schema() -> list[bytes]:
    table = pa.record_batch({"age": pa.array([1.0, 2.0])})
    content = [_stored(lambda path: write_table(table, path)), _stored(_write_scan)]
    return [_inspected(data)[1].to_proto().SerializeToString() for data in content]


# -- files ----------------------------------------------------------------------------------------------


@cache
def _scratch() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="consilium-fuzz-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _file(name: str, data: bytes) -> Path:
    path = _scratch() / name
    path.write_bytes(data)
    return path


def _stored(write: Callable[[Path], None]) -> bytes:
    path = _scratch() / "seed"
    write(path)
    return path.read_bytes()


def _write_scan(path: Path) -> None:
    write_array(np.arange(12, dtype=np.uint8).reshape(3, 4), path)


def _inspected(data: bytes) -> tuple[int, SetSchema]:
    return inspect(_file("public-set", data))


def public_set(data: bytes) -> None:
    """The file an admin uploads and a silo downloads."""
    rows, schema = _inspected(data)
    assert rows > 0
    assert SetSchema.from_proto(schema.to_proto()) == schema


def _public_sets() -> list[bytes]:
    categories = pa.array(["a", "b", "a"]).dictionary_encode()
    table = pa.record_batch({"age": pa.array([1.0, None, 3.0]), "ward": categories})
    text = pa.record_batch({"note": pa.array(["x", "y"], pa.large_string())})
    npy = BytesIO()
    np.save(npy, np.array([{}], dtype=object), allow_pickle=True)
    return [
        _stored(lambda path: write_table(table, path)),
        _stored(lambda path: write_table(text, path)),
        _stored(_write_scan),
        npy.getvalue(),
    ]


def audit_record(data: bytes) -> None:
    """The silo's record: whole, or broken at a place that is named."""
    folder = _scratch() / "agent"
    folder.mkdir(exist_ok=True)
    (folder / "audit.jsonl").write_bytes(data)
    stored = read_record(folder)
    for link in stored.links:
        audit_entry(link)


def audit_head(data: bytes) -> None:
    """The head beside it."""
    folder = _scratch() / "headed"
    folder.mkdir(exist_ok=True)
    (folder / "audit.jsonl").write_bytes(_record()[0])
    (folder / "audit-head.json").write_bytes(data)
    read_record(folder)


def approvals(data: bytes) -> None:
    """The hospital's record of approvals."""
    ApprovalRecord(_file("approvals.jsonl", data)).approvals()


def kept_receipt(data: bytes) -> None:
    """A receipt in the record."""
    RecordedReceipt.from_entry(json.loads(data))


def _record() -> list[bytes]:
    entry = {
        "at": "2031-05-06T07:08:09+00:00",
        "direction": "out",
        "kind": "ballot",
        "task": "stroke",
        "round": 1,
        "bytes": 3,
        "digest": "0" * 64,
    }
    link = append(Head(), entry)
    line = json.dumps(vars(link), sort_keys=True, separators=(",", ":")) + "\n"
    return [line.encode()]


def _approval() -> list[bytes]:
    path = _scratch() / "seed-approvals.jsonl"
    path.unlink(missing_ok=True)
    act = Approval(Act.APPROVED, "stroke", "0" * 64, "dpo", "2031-05-06", "", {"name": "stroke"})
    ApprovalRecord(path).add(act)
    return [path.read_bytes()]


def _receipt() -> list[bytes]:
    kept = RecordedReceipt(_STATEMENT, "0" * 64, b"\x01\x02", "0" * 64)
    return [json.dumps(kept.entry()).encode()]


def coordinator_yaml(data: bytes) -> None:
    """An operator's file."""
    read_yaml(_file("coordinator.yaml", data), CoordinatorSettings)


def silo_yaml(data: bytes) -> None:
    """A hospital's file."""
    read_yaml(_file("silo.yaml", data), SiloSettings)


def task_yaml(data: bytes) -> None:
    """An admin's file."""
    read_yaml(_file("task.yaml", data), TaskDefinition)


# -- small texts ----------------------------------------------------------------------------------------


def proxy(data: bytes) -> None:
    """A setting with a password in it."""
    Proxy.parse(data.decode("latin-1"))


def peer_name(data: bytes) -> None:
    """gRPC's name of a peer."""
    assert isinstance(address_of(data.decode("latin-1")), str)


def log_line(data: bytes) -> None:
    """What gRPC's core prints of a handshake, parts of it chosen by the peer."""
    refusal_in(data)


def _message(message: Message) -> list[bytes]:
    return [message.SerializeToString()]


FILE_ERRORS = (Refusal, ConfigurationError)
TARGETS: dict[str, Target] = {
    "ballot": Target(
        ballot,
        (Refusal,),
        lambda: [b"\x11\x02\x01\x00", b"\x10\x02\x01\x80", b"\x12\x02\x01\x40"],
    ),
    "ballot_header": Target(
        ballot_header,
        (Refusal, DecodeError, ValidationError),
        lambda: _message(
            ballot_pb2.BallotHeader(
                task="t",
                round=1,
                encoding=2,
                size_bytes=252,
                privacy=Declaration(epsilon=2.5, delta=1e-6, one_if_voted=0.9).to_proto(),
            )
        ),
    ),
    "join_token": Target(join_token, (Refusal,), lambda: [_token().line.encode()]),
    "join_token_fields": Target(join_token_fields, (Refusal,), lambda: [_token_payload()]),
    "certificate_request": Target(certificate_request, (Refusal,), lambda: [_request()]),
    "certificate_request_der": Target(
        certificate_request_der,
        (Refusal,),
        lambda: [x509.load_pem_x509_csr(_request()).public_bytes(Form.DER)],
    ),
    "certificate": Target(
        certificate,
        (),
        lambda: [
            _signer().certificate_pem,
            x509.load_pem_x509_certificate(_signer().certificate_pem).public_bytes(Form.DER),
        ],
    ),
    "name_in_certificate": Target(
        name_in_certificate, (), lambda: [b"spiffe://rhine-clinics/silo/a"]
    ),
    "receipt_signature": Target(receipt_signature, (), list, runs=3000),
    "receipt_signer": Target(
        receipt_signer,
        (),
        lambda: [x509.load_pem_x509_certificate(_signer().certificate_pem).public_bytes(Form.DER)],
        runs=3000,
    ),
    "task_definition": Target(
        task_definition,
        (DecodeError, ValidationError),
        lambda: _message(_definition().to_proto()),
    ),
    "set_schema": Target(set_schema, (DecodeError, Refusal), _schema),
    "public_set": Target(public_set, (Refusal,), _public_sets, runs=2000),
    "audit_record": Target(audit_record, FILE_ERRORS, _record, runs=3000),
    "audit_head": Target(
        audit_head, FILE_ERRORS, lambda: [b'{"sequence": 1, "hash": "0"}'], runs=3000
    ),
    "approvals": Target(approvals, FILE_ERRORS, _approval, runs=3000),
    "kept_receipt": Target(kept_receipt, (ValueError, KeyError, TypeError), _receipt),
    "coordinator_yaml": Target(
        coordinator_yaml,
        FILE_ERRORS,
        lambda: [b"consortium: a\nhosts: [x]\nlimits: {calls: {per_second: 1, burst: 2}}\n"],
        runs=2000,
    ),
    "silo_yaml": Target(
        silo_yaml,
        FILE_ERRORS,
        lambda: [b"data: {path: d.csv, label: y}\nmodel: xgboost\npolicy: {max_rounds: 5}\n"],
        runs=2000,
    ),
    "task_yaml": Target(
        task_yaml,
        FILE_ERRORS,
        lambda: [b"name: t\npublic_set: s\nlabels: [a, b]\nrounds: {deadline: 10m}\n"],
        runs=2000,
    ),
    "proxy": Target(proxy, (ConfigurationError,), lambda: [b"http://u:p@proxy.example:3128"]),
    "peer_name": Target(
        peer_name, (), lambda: [b"ipv4:192.0.2.7:1", b"ipv6:%5Bfe80::1%25eth0%5D:9"]
    ),
    "log_line": Target(
        log_line,
        (),
        lambda: [
            b"E0000 ssl_transport_security.cc:1] Handshake failed with error X: "
            b"OPENSSL_internal:CERTIFICATE_VERIFY_FAILED: certificate has expired"
        ],
    ),
}

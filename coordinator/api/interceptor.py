"""The interceptor of every RPC: authenticates the caller, checks its role, and turns errors into gRPC statuses."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, aclosing, asynccontextmanager, nullcontext
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Final, Literal, Never, TypeAlias, cast
from urllib.parse import unquote

import grpc
import grpc.aio
import structlog

from coordinator.api.open_calls import OpenCall, OpenCalls
from coordinator.api.rate_limit import LOG_LINES, Buckets, CallLimiter
from coordinator.api.upload import Piece, Upload, measuring
from coordinator.front_door.peers import client_of
from coordinator.settings import Limits
from coordinator.store.actors import Caller
from wire.errors import (
    HEADERS_TOO_LARGE,
    INTERNAL,
    NO_IDENTITY,
    OTHER_CONSORTIUM,
    WRONG_ROLE,
    Refusal,
)
from wire.identity.identity import (
    Certificate,
    Role,
    expiry_refusal,
    presented_certificate,
)
from wire.net.address import site_of
from wire.net.channels import MAX_METADATA_BYTES
from wire.runtime.logs import exception_summary

Admitted = frozenset[Role] | Literal["anyone"]
Admit = Callable[[Caller], Awaitable[None]]
# grpc's classes are generic only in its type stubs, hence the quotes.
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Answering: TypeAlias = Callable[[str, Context], AbstractContextManager[None]]

# Who may call what, by the beginning of the full method name; what is not listed is closed to all.
SERVICE_TABLE: Final[Mapping[str, Admitted]] = {
    "/consilium.v1.AdminService/": frozenset({Role.ADMIN}),
    "/consilium.v1.RoundsService/": frozenset({Role.SILO}),
    "/consilium.v1.IdentityService/": frozenset({Role.SILO, Role.ADMIN}),
    "/consilium.v1.RegistryService/": frozenset({Role.SILO, Role.ADMIN}),
    "/grpc.health.v1.Health/": "anyone",
}
ENROLMENT_TABLE: Final[Mapping[str, Admitted]] = {
    "/consilium.v1.EnrolmentService/": "anyone",
    "/grpc.health.v1.Health/": "anyone",
}

# A status travels as a header, whose size is limited, and a sentence may quote what a caller sent.
_LONGEST_SENTENCE: Final = 1000

_caller: ContextVar[Caller] = ContextVar("caller")
_log = structlog.get_logger(__name__)


def caller() -> Caller:
    """Who makes the call being served; LookupError in a method that is open to anyone."""
    return _caller.get()


class AdmissionInterceptor(grpc.aio.ServerInterceptor):
    """Admits callers by a role table and turns refusals into gRPC statuses.

    `admit(caller)` raises Refusal for a caller the store does not (or no longer) accept. It is asked before anything
    of a call is read, and again when its message or upload is complete; in between and afterwards `open_calls` can
    end the call. `consortium` is the trust domain of every caller; empty means that any is good.
    `on_refusal(code, method)` is called for every refused or failed call; `answering(method, context)` is entered
    for as long as any call lasts. `call_limiter` limits what comes, by certificate or address; `member_limiter` what
    admitted members do, by name, so that a new certificate brings no new allowance and one that was replaced uses
    up nothing of its successor's. `silence` is how many seconds a caller's next message may take. Every message is
    held to the bounds of its proto (`coordinator.api.upload`).
    """

    def __init__(
        self,
        table: Mapping[str, Admitted],
        admit: Admit,
        on_refusal: Callable[[str, str], None],
        new_incident: Callable[[], str] = lambda: secrets.token_hex(4),
        *,
        consortium: str = "",
        open_calls: OpenCalls | None = None,
        call_limiter: CallLimiter | None = None,
        member_limiter: CallLimiter | None = None,
        silence: float = Limits().silence,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        answering: Answering = lambda method, context: nullcontext(),
    ) -> None:
        self._table = table
        self._admit = admit
        self._on_refusal = on_refusal
        self._new_incident = new_incident
        self._consortium = consortium
        self._open_calls = open_calls or OpenCalls()
        self._call_limiter = call_limiter or CallLimiter.for_members(Limits(), time.monotonic)
        self._member_limiter = member_limiter or CallLimiter.for_members(Limits(), time.monotonic)
        self._silence = silence
        self._clock = clock
        self._answering = answering
        self._lines = Buckets(LOG_LINES, time.monotonic)

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """Wraps the method's handler; gRPC itself answers for methods that do not exist."""
        handler = await continuation(handler_call_details)
        return None if handler is None else self._guarded(handler, handler_call_details.method)

    def _guarded(self, handler: Handler, method: str) -> Handler:
        """The same method, for gRPC always one that is sent a stream.

        Of a call with one request gRPC would read that request, for as long as it takes, before asking anyone.
        On the wire the two are alike, and this way nothing of a call is read before its caller is admitted.
        """
        behaviour, rebuild = _parts(handler)

        async def answer(pieces: AsyncIterator[Piece], context: Context) -> Any:
            with self._answering(method, context):
                async with self._admitted(method, context, pieces) as upload:
                    request = upload if handler.request_streaming else await upload.only()
                    return await behaviour(request, context)

        async def stream(
            pieces: AsyncIterator[Piece], context: Context
        ) -> AsyncGenerator[Any, None]:
            with self._answering(method, context):
                async with self._admitted(method, context, pieces) as upload:
                    request = upload if handler.request_streaming else await upload.only()
                    async with aclosing(behaviour(request, context)) as responses:
                        async for response in responses:
                            yield response

        # A method that streams by `context.write` is a plain coroutine, like one that answers once.
        wrapped = stream if inspect.isasyncgenfunction(behaviour) else answer
        return rebuild(
            wrapped, measuring(handler.request_deserializer), handler.response_serializer
        )

    @asynccontextmanager
    async def _admitted(
        self, method: str, context: Context, pieces: AsyncIterator[Piece]
    ) -> AsyncIterator[Upload]:
        """Yields what the caller sends, once the caller is admitted; any error becomes the call's status."""
        upload = Upload(pieces, self._silence)
        async with self._reporting_errors(method, context):
            with self._call_limiter.passing(_rate_limit_key(context), method):
                _check_headers(context)
                call = None
                try:
                    with self._open_calls.holding() as call:
                        async with self._as_allowed(method, context, call, upload):
                            yield upload
                except grpc.aio.AbortError:
                    raise
                except Exception:
                    await upload.hear_out(briefly=call is not None and call.refusal is not None)
                    raise

    @asynccontextmanager
    async def _as_allowed(
        self, method: str, context: Context, call: OpenCall, upload: Upload
    ) -> AsyncIterator[None]:
        """Serves the block as a call of whoever may make it."""
        presented = self._presented(method, context)
        if presented is None:
            yield
            return
        member, certificate = presented
        # Named first: whoever is shut out after it was admitted has its call ended.
        call.caller = member
        await self._admit(member)
        with self._member_limiter.passing(str(member), method):
            upload.when_complete(lambda: self._admit(member))
            # Every call is served in a task of its own, so the value dies with the call.
            _caller.set(member)
            async with self._while_valid(certificate):
                yield

    @asynccontextmanager
    async def _while_valid(self, certificate: Certificate) -> AsyncIterator[None]:
        """Ends the block when the certificate does: TLS looks at it once per connection, or less."""
        left = certificate.not_after - self._clock()
        try:
            async with asyncio.timeout(left.total_seconds()) as validity:
                yield
        except TimeoutError:
            if not validity.expired():
                raise
            raise expiry_refusal(certificate) from None

    def _allowed(self, method: str) -> Admitted:
        """Who may call a method; nobody if the table does not list it."""
        listed = (roles for prefix, roles in self._table.items() if method.startswith(prefix))
        return next(listed, frozenset[Role]())

    def _presented(self, method: str, context: Context) -> tuple[Caller, Certificate] | None:
        """The caller and its certificate; None where anyone may call. Refuses those that may call nothing here."""
        allowed = self._allowed(method)
        if allowed == "anyone":
            return None
        certificate = presented_certificate(context.auth_context() or {})
        if certificate is None or certificate.identity is None:
            raise Refusal(NO_IDENTITY)
        identity = certificate.identity
        if self._consortium and identity.consortium != self._consortium:
            raise Refusal(OTHER_CONSORTIUM, found=identity.consortium, expected=self._consortium)
        if self._clock() >= certificate.not_after:
            raise expiry_refusal(certificate)
        if identity.role not in allowed:
            raise Refusal(
                WRONG_ROLE,
                name=identity.name,
                role=identity.role,
                method=method.rpartition("/")[2],
                allowed=" or ".join(sorted(allowed)) or "a role that does not exist",
            )
        return Caller(identity, certificate.fingerprint), certificate

    @asynccontextmanager
    async def _reporting_errors(self, method: str, context: Context) -> AsyncIterator[None]:
        try:
            yield
        except grpc.aio.AbortError:
            raise
        except Refusal as refusal:
            # By member: a new certificate brings no new allowance of lines.
            if not self._lines.take(_caller_name(context)):
                _log.info(
                    "rpc_refused",
                    code=refusal.code,
                    method=method,
                    sentence=_shortened(refusal.sentence),
                    caller=_caller_name(context),
                )
            await self._abort(refusal, method, context)
        except Exception as error:
            incident = self._new_incident()
            # The message of an exception may quote a payload; its kind and place do not.
            _log.error("rpc_failed", incident=incident, method=method, **exception_summary(error))
            await self._abort(Refusal(INTERNAL, incident=incident), method, context)

    async def _abort(self, refusal: Refusal, method: str, context: Context) -> Never:
        self._on_refusal(refusal.code, method)
        await context.abort(refusal.status, _shortened(refusal.sentence), refusal.metadata())


def _shortened(sentence: str) -> str:
    """At most _LONGEST_SENTENCE characters; the last of a longer sentence says that more was cut off."""
    if len(sentence) <= _LONGEST_SENTENCE:
        return sentence
    return sentence[: _LONGEST_SENTENCE - 1] + "…"


def _rate_limit_key(context: Context) -> str:
    """Whose calls are counted together before they are admitted: those with one certificate, else from one address."""
    for pem in (context.auth_context() or {}).get("x509_pem_cert", ()):
        return hashlib.sha256(pem).hexdigest()
    return address_of(client_of(context.peer()))


def _check_headers(context: Context) -> None:
    """HEADERS_TOO_LARGE for what gRPC lets through from a peer that never acknowledges its settings."""
    size = sum(len(key) + len(value) for key, value in context.invocation_metadata() or ())
    if size > MAX_METADATA_BYTES:
        raise Refusal(HEADERS_TOO_LARGE, size=size, most=MAX_METADATA_BYTES)


def _caller_name(context: Context) -> str:
    """The caller for a line of the log: its identity if it has one, else its address."""
    certificate = presented_certificate(context.auth_context() or {})
    if certificate is None or certificate.identity is None:
        return address_of(client_of(context.peer()))
    return f"{certificate.identity.role}/{certificate.identity.name}"


def address_of(peer: str) -> str:
    """The address in gRPC's name of a peer, without the port; of IPv6 the /64, which is one site's."""
    kind, _, rest = peer.partition(":")
    host = unquote(rest.rpartition(":")[0]).strip("[]").partition("%")[0]
    return site_of(host) or kind


def _parts(handler: Handler) -> tuple[Callable[..., Any], Callable[..., Handler]]:
    """The servicer's method, and the constructor of a handler that is sent a stream and answers alike."""
    if handler.response_streaming:
        streaming = handler.unary_stream or handler.stream_stream
        return cast("Callable[..., Any]", streaming), grpc.stream_stream_rpc_method_handler
    answering = handler.unary_unary or handler.stream_unary
    return cast("Callable[..., Any]", answering), grpc.stream_unary_rpc_method_handler

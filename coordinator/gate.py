"""The door of every RPC: who calls, whether they may, and what they are told when something goes wrong."""

from __future__ import annotations

import asyncio
import inspect
import secrets
import traceback
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Final, Literal, Never, TypeAlias

import grpc
import grpc.aio
import structlog

from wire.errors import INTERNAL, NO_IDENTITY, WRONG_ROLE, Refusal
from wire.identity import Identity, Role, presented_certificate

Admitted = frozenset[Role] | Literal["anyone"]
Admit = Callable[[Identity, str], Awaitable[None]]
# grpc's classes are generic only in its type stubs, hence the quotes.
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"

# Who may call what, by the beginning of the full method name; what is not listed is closed to all.
SERVICE_TABLE: Final[Mapping[str, Admitted]] = {
    "/consilium.v1.AdminService/": frozenset({Role.ADMIN}),
    "/consilium.v1.RoundsService/": frozenset({Role.SILO}),
    "/consilium.v1.RegistryService/": frozenset({Role.SILO, Role.ADMIN}),
    "/grpc.health.v1.Health/": "anyone",
}
ENROLMENT_TABLE: Final[Mapping[str, Admitted]] = {
    "/consilium.v1.EnrolmentService/": "anyone",
    "/grpc.health.v1.Health/": "anyone",
}

# How much of a refused upload is listened to: a public set of 256 MiB, but nobody who never ends.
_PATIENCE_MESSAGES = 256
_PATIENCE_SECONDS = 10.0

_caller: ContextVar[Identity] = ContextVar("caller")
_log = structlog.get_logger(__name__)


def caller() -> Identity:
    """Who makes the call being served; LookupError in a method that is open to anyone."""
    return _caller.get()


class Gate(grpc.aio.ServerInterceptor):
    """Admits callers by a role table and turns refusals into gRPC statuses.

    `admit(identity, fingerprint)` raises Refusal for a caller the store does not (or no longer) accept;
    `on_refusal(code, method)` hears of every refused or failed call.
    """

    def __init__(
        self,
        table: Mapping[str, Admitted],
        admit: Admit,
        on_refusal: Callable[[str, str], None],
        new_incident: Callable[[], str] = lambda: secrets.token_hex(4),
    ) -> None:
        self._table = table
        self._admit = admit
        self._on_refusal = on_refusal
        self._new_incident = new_incident

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """Wraps the method's handler; gRPC itself answers for methods that do not exist."""
        handler = await continuation(handler_call_details)
        return None if handler is None else self._guarded(handler, handler_call_details.method)

    def _guarded(self, handler: Handler, method: str) -> Handler:
        behaviour, rebuild = _parts(handler)
        streaming = handler.request_streaming

        async def answer(request: Any, context: Context) -> Any:
            async with self._watched(method, context, request if streaming else None):
                await self._let_in(method, context)
                return await behaviour(request, context)

        async def stream(request: Any, context: Context) -> AsyncGenerator[Any, None]:
            async with self._watched(method, context, request if streaming else None):
                await self._let_in(method, context)
                async with aclosing(behaviour(request, context)) as responses:
                    async for response in responses:
                        yield response

        # A method that streams by `context.write` is a plain coroutine, like one that answers once.
        wrapped = stream if inspect.isasyncgenfunction(behaviour) else answer
        return rebuild(wrapped, handler.request_deserializer, handler.response_serializer)

    async def _let_in(self, method: str, context: Context) -> None:
        allowed = next(
            (roles for prefix, roles in self._table.items() if method.startswith(prefix)),
            frozenset[Role](),
        )
        if allowed == "anyone":
            return
        certificate = presented_certificate(context.auth_context() or {})
        if certificate is None or certificate.identity is None:
            raise Refusal(NO_IDENTITY)
        identity = certificate.identity
        if identity.role not in allowed:
            raise Refusal(
                WRONG_ROLE,
                name=identity.name,
                role=identity.role,
                method=method.rpartition("/")[2],
                allowed=" or ".join(sorted(allowed)) or "a role that does not exist",
            )
        await self._admit(identity, certificate.fingerprint)
        # Every call is served in a task of its own, so the value dies with the call.
        _caller.set(identity)

    @asynccontextmanager
    async def _watched(
        self, method: str, context: Context, requests: AsyncIterator[object] | None
    ) -> AsyncIterator[None]:
        try:
            yield
        except grpc.aio.AbortError:
            raise
        except Refusal as refusal:
            _log.info("rpc_refused", code=refusal.code, method=method, sentence=refusal.sentence)
            await self._tell(refusal, method, context, requests)
        except Exception as error:
            incident = self._new_incident()
            # The message of an exception may quote a payload; its kind and place do not.
            _log.error(
                "rpc_failed",
                incident=incident,
                method=method,
                kind=type(error).__name__,
                where=_where(error),
            )
            hidden = Refusal(INTERNAL, incident=incident)
            await self._tell(hidden, method, context, requests)

    async def _tell(
        self,
        refusal: Refusal,
        method: str,
        context: Context,
        requests: AsyncIterator[object] | None,
    ) -> Never:
        self._on_refusal(refusal.code, method)
        if requests is not None:
            await _hear_out(requests)
        await context.abort(refusal.status, refusal.sentence, refusal.metadata())


async def _hear_out(requests: AsyncIterator[object]) -> None:
    """Discards the rest of an upload, within bounds, before it is answered.

    A Python client whose write fails because the call is over reports INTERNAL in place of the status it was
    sent (grpc/grpc#36066): a refusal must wait until the client has said everything.
    """
    with suppress(TimeoutError, grpc.aio.BaseError):
        async with asyncio.timeout(_PATIENCE_SECONDS):
            heard = 0
            async for _ in requests:
                heard += 1
                if heard == _PATIENCE_MESSAGES:
                    return


def _parts(handler: Handler) -> tuple[Callable[..., Any], Callable[..., Handler]]:
    """The servicer's method and the constructor of a handler of the same kind."""
    kinds = (
        (handler.unary_unary, grpc.unary_unary_rpc_method_handler),
        (handler.unary_stream, grpc.unary_stream_rpc_method_handler),
        (handler.stream_unary, grpc.stream_unary_rpc_method_handler),
        (handler.stream_stream, grpc.stream_stream_rpc_method_handler),
    )
    return next((behaviour, rebuild) for behaviour, rebuild in kinds if behaviour is not None)


def _where(error: BaseException) -> list[str]:
    frames = traceback.extract_tb(error.__traceback__)
    return [f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in frames]

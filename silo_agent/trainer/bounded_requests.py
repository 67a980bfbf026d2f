"""Holds every request on the trainer's socket to the bounds of its proto: an agent may have been taken over."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias, cast

import grpc
import grpc.aio

from wire.bounds import require_bounded
from wire.errors import Refusal

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


class BoundedRequests(grpc.aio.ServerInterceptor):
    """Answers FIELD_TOO_LONG in place of the servicer; every method has one request and one answer."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """Wraps the method's handler; gRPC itself answers for methods that do not exist."""
        handler = await continuation(handler_call_details)
        if handler is None or handler.unary_unary is None:
            return handler
        behaviour = cast("Callable[..., Awaitable[Any]]", handler.unary_unary)

        async def bounded(request: Any, context: Any) -> Any:
            try:
                require_bounded(request)
            except Refusal as refusal:
                await context.abort(refusal.status, refusal.sentence, refusal.metadata())
            return await behaviour(request, context)

        return grpc.unary_unary_rpc_method_handler(
            bounded, handler.request_deserializer, handler.response_serializer
        )

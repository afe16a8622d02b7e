"""Compiles the forms that answers follow; the forms of one client do not delay others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from starlette.requests import Request

from ..chat.reader import Reader
from ..config import SamplingParams, build
from ..constraints.compiler import compiled_at_once
from ..engine import Engine
from ..errors import ConfigError
from ..sampling.base import Constraint
from .clients import client_of
from .errors import bad_value, shutting_down
from .parameters import ChatRequest
from .request_queue import RequestQueue
from .settings import ServerSettings
from .tokenization import Conversation
from .tools import place_of
from .work import Stopped, in_turn, while_connected


class Followed(NamedTuple):
    """A compiled form. constraint: None for no limits. reader: finds reasoning and calls in the
    answer; None where there can be none.
    """

    constraint: Constraint | None = None
    reader: Reader | None = None


class Forms:
    """Compiles forms of answers in threads: one at a time for each client, few altogether."""

    def __init__(self, engine: Engine, settings: ServerSettings) -> None:
        self._engine = engine
        self._max_waiting = settings.max_queue
        self._queues: dict[str, RequestQueue] = {}  # of the clients that compile
        self._at_once = asyncio.Semaphore(compiled_at_once())
        self._closed = False

    @property
    def n_running(self) -> int:
        """Number of forms that are compiled."""
        return sum(queue.n_running for queue in self._queues.values())

    def close(self) -> None:
        """Stop compiling; requests that wait for it get a 503."""
        self._closed = True
        for queue in self._queues.values():
            queue.close()

    async def of_text(self, request: Request, fields: Mapping[str, Any], param: str) -> Followed:
        """Return what the answer to a text follows.

        param: the parameter that gives the answer a form, "" if none does. Raises ApiError.
        """
        owner = client_of(request.scope).owner

        def work(stopped: Stopped) -> Followed:
            try:
                return Followed(self._engine.constraint(build(SamplingParams, fields), owner=owner))
            except ConfigError as error:
                raise bad_value(param, str(error)) from None

        return await self._alone(request, work) if param else Followed()

    async def of_chat(
        self,
        request: Request,
        fields: Mapping[str, Any],
        param: str,
        given: ChatRequest,
        asked: Conversation,
    ) -> Followed:
        """Return what the answer of a conversation follows, and what reads it; as `of_text`."""
        if asked.options is None:
            return await self.of_text(request, fields, param)

        owner = client_of(request.scope).owner

        def work(stopped: Stopped) -> Followed:
            try:
                return self._of_answer(build(SamplingParams, fields), asked, owner, stopped)
            except ConfigError as error:
                place = place_of(given, param, self._engine, owner)
                raise bad_value(place, str(error)) from None

        return await self._alone(request, work)

    def _of_answer(
        self, params: SamplingParams, asked: Conversation, owner: str, stopped: Stopped
    ) -> Followed:
        assert asked.options
        options, form = self._engine.followed(asked.options, owner), self._engine.answer_format
        if stopped():
            raise shutting_down()
        constraint = self._engine.constraint(params, options, asked.rendered, owner)
        if not options.tools and not form.reasoning:
            return Followed(constraint)
        has_form = params.is_constrained
        return Followed(constraint, form.reader(options, asked.rendered, has_form=has_form))

    async def _alone(self, request: Request, work: Callable[[Stopped], Followed]) -> Followed:
        if self._closed:
            raise shutting_down()
        turn = client_of(request.scope).turn
        queue = self._queues.setdefault(turn, RequestQueue(self._max_waiting))
        try:
            working = in_turn(queue, turn, work, self._at_once)
            return await while_connected(request.receive, working)
        finally:
            if not queue.n_running and not queue.n_waiting:
                self._queues.pop(turn, None)

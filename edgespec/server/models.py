"""The endpoints that tell which model is served, and what its slots do."""

from __future__ import annotations

import time
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ..engine import Engine
from ..types import RequestStatus
from .clients import client_of
from .filling import Filling
from .preparation import Preparation
from .settings import ServerSettings


class Models:
    """The endpoints about the one model that is served."""

    def __init__(
        self,
        engine: Engine,
        settings: ServerSettings,
        preparation: Preparation,
        filling: Filling,
    ) -> None:
        self._engine = engine
        self._settings = settings
        self._preparation = preparation
        self._filling = filling
        self._created = int(time.time())

    def routes(self) -> list[Route]:
        """Return the routes: those of OpenAI under `/v1`, and llama.cpp's `/slots`."""
        return [
            Route("/slots", self.slots, methods=["GET"]),
            Route("/v1/models", self.models, methods=["GET"]),
            Route("/v1/models/{model:path}", self.model, methods=["GET"]),
        ]

    async def models(self, request: Request) -> Response:
        """Answer `/v1/models`: a list of the one model that is served, under each of its names."""
        names = dict.fromkeys(self._settings.names)
        return JSONResponse({"object": "list", "data": [self._card(name) for name in names]})

    async def model(self, request: Request) -> Response:
        """Answer `/v1/models/{model}`: the model of this name."""
        asked = request.path_params["model"]
        self._preparation.check_model(asked)
        return JSONResponse(self._card(asked if asked in self._settings.aliases else None))

    async def slots(self, request: Request) -> Response:
        """Answer `/slots`: whether each slot is taken, and how far the client's own requests are.

        The fields are those of llama.cpp's server.
        """
        status, owner = self._engine.status(), client_of(request.scope).owner
        taken = {each.slot for each in status.running}
        own = {each.slot: each for each in self._engine.status(owner).running}
        return JSONResponse(
            [
                {"id": slot, "n_ctx": self._engine.n_ctx, "is_processing": slot in taken}
                | (_progress(own[slot]) if slot in own else {})
                for slot in range(status.n_slots)
            ]
        )

    def _card(self, name: str | None = None) -> dict[str, Any]:
        return {
            "id": name or self._settings.model,
            "object": "model",
            "created": self._created,
            "owned_by": "edgespec",
            "max_model_len": self._engine.n_ctx,
            "speculation": self._engine.describe()["speculation"],
            "sampling": self._engine.sampling.describe(self._settings.sampling),
            "fill_in_middle": self._filling.kind,
        }


def _progress(status: RequestStatus) -> dict[str, Any]:
    return {
        "n_prompt_tokens": status.num_prompt_tokens,
        "n_prompt_tokens_processed": status.num_read_tokens,
        "next_token": [{"n_decoded": status.num_emitted_tokens}],
        "running_ms": round(1e3 * status.running_s, 3),
    }

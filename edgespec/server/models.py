"""The endpoints that tell which model is served."""

from __future__ import annotations

import time
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ..engine import Engine
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
        """Return the routes, all under `/v1`."""
        return [
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

"""The application: every address, and the layers around them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from ngsan import __version__
from ngsan.serve.captions import add_caption_routes
from ngsan.serve.desk import Desk, PhotoModelCard
from ngsan.serve.explaining import add_explain_routes
from ngsan.serve.front import Front
from ngsan.serve.meters import CONTENT_TYPE
from ngsan.serve.refusals import JsonResponse, Refusal, answer_invalid, answer_refusal
from ngsan.serve.scenes import Scenes, add_scene_routes
from ngsan.serve.schemas import Health, ModelList, problems
from ngsan.serve.security import Guard
from ngsan.serve.settings import ServeSettings
from ngsan.serve.site import add_site_routes

if TYPE_CHECKING:
    from ngsan.studio.scenes import SceneStudio

DESCRIPTION = """Captions of photographs and of drawn scenes, and what the models looked at.

Errors are an object with one sentence, error. With 429 and 503, Retry-After says when to try again.
Nothing that is sent is kept or written down."""


def build_app(
    settings: ServeSettings,
    *,
    model: PhotoModelCard | None = None,
    studio: "SceneStudio | None" = None,
) -> FastAPI:
    """Makes the application of a server.

    Args:
        settings: Where it listens, and its limits.
        model: A model of photographs that is open already; None for that of the settings.
        studio: Scene models that are open already; None to open those that ship.

    Raises:
        ValueError: The model cannot be opened.
    """
    desk = Desk.of(settings, PhotoModelCard.open(settings) if model is None else model)
    scenes = Scenes(desk, studio)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        # In the background, so that the first drag of a thing is as quick as the others.
        opening = asyncio.create_task(_open_early(scenes))
        yield
        opening.cancel()
        desk.batcher.close()

    app = FastAPI(
        title="ngsan",
        version=__version__,
        description=DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
        exception_handlers={
            HTTPException: answer_refusal,
            RequestValidationError: answer_invalid,
        },
    )
    app.state.desk = desk
    add_caption_routes(app, desk)
    add_explain_routes(app, desk)
    add_scene_routes(app, desk, scenes)
    add_site_routes(app)
    _add_own_routes(app, desk, scenes)
    app.add_middleware(Guard, settings=settings)
    app.add_middleware(Front, settings=settings, meters=desk.meters, presence=desk.presence)
    return app


async def _open_early(scenes: Scenes) -> None:
    with suppress(Refusal):  # an installation without them serves photographs all the same
        await scenes.do(lambda _: None)


def _add_own_routes(app: FastAPI, desk: Desk, scenes: Scenes) -> None:
    """Adds the addresses about the server itself."""

    @app.get(
        "/v1/models",
        summary="The models",
        response_model=None,
        responses={
            200: {"model": ModelList, "description": "The models."},
            **problems(400, 401, 503),
        },
    )
    async def models() -> Response:
        """The model of photographs, and those of scenes."""
        found = [desk.model.about()]
        with suppress(Refusal):
            found += await scenes.do(lambda studio: studio.models())
        return JsonResponse({"models": found})

    @app.get(
        "/healthz",
        summary="Whether the server takes requests",
        response_model=None,
        responses={
            200: {"model": Health, "description": "It does."},
            503: {"model": Health, "description": "It is stopping."},
            **problems(400),
        },
    )
    async def healthz() -> Response:
        """For balancers and supervisors; it needs no token."""
        if desk.presence.draining:
            return JsonResponse({"status": "draining"}, 503, headers={"retry-after": "2"})
        return JsonResponse({"status": "ok"})

    @app.get(
        "/metrics",
        summary="Counts for Prometheus",
        response_model=None,
        responses={
            200: {
                "content": {"text/plain": {"schema": {"type": "string"}}},
                "description": "Text.",
            },
            **problems(400, 401),
        },
    )
    async def metrics() -> Response:
        """Requests by route and status, times, batches, queue and memory."""
        return Response(desk.meters.page(), headers={"content-type": CONTENT_TYPE})

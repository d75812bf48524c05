"""The web application: all routes and the layers around them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse, Response

from ngsan import __version__
from ngsan.app.context import Context, ServedModel
from ngsan.app.errors import ApiError, JsonResponse, handle_http_error, handle_validation_error
from ngsan.app.metrics import CONTENT_TYPE
from ngsan.app.middleware import AccessControl, RequestLimits
from ngsan.app.photo_routes import add_photo_routes
from ngsan.app.scene_routes import SceneModels, add_scene_routes
from ngsan.app.schemas import Health, ModelList, answers, problems
from ngsan.app.settings import ServeSettings
from ngsan.app.site_routes import add_site_routes
from ngsan.app.studio import SceneStudio
from ngsan.predict.manifest import needs_torch
from ngsan.vision.decoding import DecodingService

DESCRIPTION = """Captions photographs and drawn scenes, and shows the attention of the models.

Errors are objects with one sentence, error. With 429 and 503, Retry-After says when to try again.
Nothing that you send is stored or logged."""


def build_app(
    settings: ServeSettings,
    *,
    model: ServedModel | None = None,
    studio: SceneStudio | None = None,
    decoding: DecodingService | None = None,
) -> FastAPI:
    """Builds the application of a server.

    Args:
        settings: The address and the limits.
        model: A model of photographs that is open already; None for that of the settings.
        studio: Scene models that are open already; None for those in the package.
        decoding: Decodes the photographs; None for processes with the limits of the settings.

    Raises:
        ValueError: The model cannot be opened.
    """
    model = ServedModel.open(settings) if model is None else model
    context = Context(settings, model, decoding)
    scenes = SceneModels(context, studio)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        # In the background, so that the first scene is as quick as the others.
        opening = asyncio.create_task(_open_early(context, scenes))
        context.decoding.start(settings.decoders)
        yield
        opening.cancel()
        context.batcher.close()
        context.decoding.close()

    app = FastAPI(
        title="ngsan",
        version=__version__,
        description=DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
        exception_handlers={
            HTTPException: handle_http_error,
            RequestValidationError: handle_validation_error,
        },
    )
    app.state.context = context
    add_photo_routes(app, context)
    add_scene_routes(app, context, scenes)
    add_site_routes(app)
    _add_status_routes(app, context, scenes)
    app.add_middleware(AccessControl, settings=settings)
    app.add_middleware(
        RequestLimits, settings=settings, metrics=context.metrics, state=context.state
    )
    return app


async def _open_early(context: Context, scenes: SceneModels) -> None:
    # The second eye and the maps: opening them takes memory for a moment, rather now than later.
    await context.detectors.run(context.model.captioner.sides)
    if not needs_torch(context.model.folder, None):
        with suppress(ValueError):  # a request reports it
            await context.explainers.run(lambda: context.explainer)
    with suppress(ApiError):  # without them, the server still captions photographs
        await scenes.run(lambda _: None)


def _add_status_routes(app: FastAPI, context: Context, scenes: SceneModels) -> None:
    @app.get(
        "/v1/models",
        summary="List the models",
        response_model=None,
        responses=answers(ModelList, "The models.", 400, 401, 503),
    )
    async def models() -> Response:
        """The model of photographs, and those of scenes."""
        found = [context.model.info()]
        with suppress(ApiError):
            found += await scenes.run(lambda studio: studio.models())
        return JsonResponse({"models": found})

    @app.get(
        "/healthz",
        summary="Check the server",
        response_model=None,
        responses={
            200: {"model": Health, "description": "It accepts requests."},
            503: {"model": Health, "description": "It is shutting down."},
            **problems(400),
        },
    )
    async def healthz() -> Response:
        """For load balancers and supervisors; it needs no token."""
        if context.state.draining:
            return JsonResponse({"status": "draining"}, 503, headers={"retry-after": "2"})
        return JsonResponse({"status": "ok"})

    @app.get(
        "/metrics",
        summary="Counters for Prometheus",
        response_class=PlainTextResponse,
        responses={200: {"description": "Text."}, **problems(400, 401)},
    )
    async def metrics() -> Response:
        """Requests by route and status, times, batches, queue and memory."""
        return Response(context.metrics.page(), headers={"content-type": CONTENT_TYPE})

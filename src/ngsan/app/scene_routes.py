"""`/v1/scene` and `/v1/bias`: captions of drawn scenes, and the geometric bias as surfaces."""

import dataclasses
from collections import Counter
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from fastapi import FastAPI, Query
from starlette.requests import Request
from starlette.responses import Response

from ngsan.app.attention import Surfaces
from ngsan.app.context import Context, queue_of
from ngsan.app.errors import ApiError, JsonResponse
from ngsan.app.schemas import (
    BiasModelName,
    BiasRequest,
    Index,
    SceneRequest,
    answers,
)
from ngsan.app.studio import SceneAnswer, SceneStudio
from ngsan.app.workers import FairThreads, run_unless_disconnected

T = TypeVar("T")

_ERRORS = (400, 401, 404, 408, 413, 415, 422, 429, 503)


class SceneModels:
    """The scene models, opened once and run in a thread of their own."""

    def __init__(self, context: Context, studio: SceneStudio | None = None) -> None:
        """Uses an open studio, or opens the models in the package with the first request."""
        self._settings, self._studio = context.settings, studio
        self._capacity = queue_of(context.settings.scene_queue_size)
        self._threads = FairThreads(1, "scenes", context.ledger)

    async def answer(self, request: Request, call: Callable[[SceneStudio], T]) -> T:
        """The result of a call of the models, for a client that may disconnect.

        Raises:
            ApiError: The models are missing or busy, or a value is wrong.
        """
        with self._capacity.reserved():
            return await run_unless_disconnected(
                self.run(call), request.receive, timeout=self._settings.request_timeout
            )

    async def run(self, call: Callable[[SceneStudio], T]) -> T:
        """The result of a call of the models."""
        try:
            return await self._threads.run(lambda: call(self._open()))
        except ValueError as error:
            raise ApiError(422, str(error)) from None

    def _open(self) -> SceneStudio:
        try:
            if self._studio is None:  # in the only thread
                self._studio = SceneStudio.open(threads=1)
            return self._studio
        except (OSError, ValueError):
            raise ApiError(404, "the scene models are not installed") from None


def add_scene_routes(app: FastAPI, context: Context, scenes: SceneModels) -> None:
    """Adds the routes to a server."""

    @app.post(
        "/v1/scene",
        summary="Caption a drawn scene",
        response_model=None,
        responses=answers(SceneAnswer, "The caption.", *_ERRORS),
    )
    async def scene(request: Request, body: SceneRequest) -> Response:
        """Captions coloured shapes; `is_true` says whether the caption is true of the scene.

        The last row and column of maps belong to the canvas.
        """
        answer = await scenes.answer(
            request,
            lambda studio: studio.caption(body.model, body.signed, body.objects, maps=body.maps),
        )
        context.metrics.scenes.inc()
        content = _as_dict(answer)
        if not body.maps:
            content.pop("maps", None)
        return JsonResponse(content)

    surfaces = answers(Surfaces, "The surfaces.", *_ERRORS)

    @app.get(
        "/v1/bias",
        summary="Geometric bias of a scene model",
        response_model=None,
        responses=surfaces,
    )
    async def bias(
        request: Request,
        model: Annotated[BiasModelName, Query()],
        signed: Annotated[bool, Query()] = False,
        layer: Annotated[Index, Query()] = 0,
        head: Annotated[Index, Query()] = 0,
        two_sided: Annotated[bool, Query()] = False,
    ) -> Response:
        """The bias as a function of relative position and size, for the mean query.

        Offsets range from 0 to 3; two-sided ones from -3 to 3, to the right and down. They differ
        only with signed geometry.
        """
        names = Counter(name for name, _ in request.query_params.multi_items())
        for name, count in names.items():
            if count > 1:
                raise ApiError(422, f"{name[:50]}: it is given {count} times")
        return await _surfaces(request, model, signed, layer=layer, head=head, two_sided=two_sided)

    @app.post(
        "/v1/bias",
        summary="Geometric bias for an object of a scene",
        response_model=None,
        responses=surfaces,
    )
    async def bias_of_object(request: Request, body: BiasRequest) -> Response:
        """The bias of one object of a scene towards others."""
        return await _surfaces(
            request,
            body.model,
            body.signed,
            layer=body.layer,
            head=body.head,
            two_sided=body.two_sided,
            objects=body.objects,
            object_index=body.object_index,
        )

    async def _surfaces(request: Request, model: str, signed: bool, **options: Any) -> Response:
        answer = await scenes.answer(
            request, lambda studio: studio.surfaces(model, signed, **options)
        )
        return JsonResponse(_as_dict(answer))


def _as_dict(answer: Any) -> dict[str, Any]:
    """The fields of a dataclass, also of one in it, as JSON values.

    Note: `dataclasses.asdict` needs longer for the numbers of maps than the model.
    """
    fields = {item.name: getattr(answer, item.name) for item in dataclasses.fields(answer)}
    return {
        name: _as_dict(value) if dataclasses.is_dataclass(value) else value
        for name, value in fields.items()
    }

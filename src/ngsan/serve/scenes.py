"""`/v1/scene` and `/v1/bias`: captions of drawn scenes, and the geometric bias as surfaces."""

import dataclasses
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from fastapi import FastAPI, Query
from starlette.requests import Request
from starlette.responses import Response

from ngsan.serve.desk import Desk
from ngsan.serve.limits import Room
from ngsan.serve.refusals import JsonResponse, Refusal
from ngsan.serve.schemas import (
    BiasAsked,
    BiasModelName,
    BiasSurfaces,
    Index,
    SceneAsked,
    SceneCaption,
    SceneThingAsked,
    problems,
)
from ngsan.serve.threads import Threads
from ngsan.serve.waiting import finish

if TYPE_CHECKING:
    from ngsan.studio.bias import Surfaces
    from ngsan.studio.scenes import SceneStudio, SceneThing

T = TypeVar("T")

_PROBLEMS = problems(400, 401, 404, 408, 413, 415, 422, 429, 503)


class Scenes:
    """The scene models, opened once and asked in a thread of their own."""

    def __init__(self, desk: Desk, studio: "SceneStudio | None" = None) -> None:
        """Takes what a server shares, and the models if they are open."""
        self._desk, self._studio = desk, studio
        self._room, self._threads = Room(desk.settings.scene_queue), Threads(1, "scenes")
        self._lock = threading.Lock()

    async def ask(self, request: Request, call: Callable[["SceneStudio"], T]) -> T:
        """What a call of the models returns.

        Raises:
            Refusal: There are none, they are asked too much, or for what is not there.
        """
        self._desk.check_room(self._room)
        with self._room.held():
            return await finish(
                self.do(call), request.receive, seconds=self._desk.settings.answer_seconds
            )

    async def do(self, call: Callable[["SceneStudio"], T]) -> T:
        """The same without a client that may hang up."""
        try:
            return await self._threads.do(lambda: call(self._open()))
        except ValueError as error:
            raise Refusal(422, str(error)) from None

    def _open(self) -> "SceneStudio":
        try:
            from ngsan.studio.scenes import SceneStudio

            with self._lock:
                if self._studio is None:
                    self._studio = SceneStudio.open(threads=1)
                return self._studio
        except (ImportError, OSError, ValueError):
            raise Refusal(404, "this installation comes without scene models") from None


def add_scene_routes(app: FastAPI, desk: Desk, scenes: Scenes) -> None:
    """Adds the addresses to a server."""

    @app.post(
        "/v1/scene",
        summary="The caption of a drawn scene",
        response_model=None,
        responses={200: {"model": SceneCaption, "description": "The caption."}, **_PROBLEMS},
    )
    async def scene(request: Request, asked: SceneAsked) -> Response:
        """Captions coloured shapes; `true` says whether the caption holds.

        Maps have a last row and column for the canvas.
        """
        answer = await scenes.ask(
            request,
            lambda studio: studio.caption(
                asked.model, asked.signed, _things(asked.things), maps=asked.maps
            ),
        )
        desk.meters.scenes.inc()
        made = _plain(answer)
        if not asked.maps:
            made.pop("maps", None)
        return JsonResponse(made)

    surfaces = {200: {"model": BiasSurfaces, "description": "The surfaces."}, **_PROBLEMS}

    @app.get(
        "/v1/bias",
        summary="The geometric bias of a scene model",
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
        """The bias over how far and how large two things are; by the mean query if it has one.

        Offsets go from 0 to 3; two-sided ones from -3 to 3, to the right and downwards, which
        differ with signed geometry only.
        """
        _check_once(request)
        return await _surfaces(request, model, signed, layer=layer, head=head, two_sided=two_sided)

    @app.post(
        "/v1/bias",
        summary="The geometric bias for a thing of a scene",
        response_model=None,
        responses=surfaces,
    )
    async def bias_of_thing(request: Request, asked: BiasAsked) -> Response:
        """The bias that one thing of a scene has for others."""
        return await _surfaces(
            request,
            asked.model,
            asked.signed,
            layer=asked.layer,
            head=asked.head,
            two_sided=asked.two_sided,
            things=asked.things,
            thing=asked.thing,
        )

    async def _surfaces(
        request: Request,
        model: str,
        signed: bool,
        *,
        layer: int,
        head: int,
        two_sided: bool,
        things: Sequence[SceneThingAsked] | None = None,
        thing: int = 0,
    ) -> Response:
        def call(studio: "SceneStudio") -> "Surfaces":
            drawn = None if things is None else _things(things)
            return studio.surfaces(
                model,
                signed,
                layer=layer,
                head=head,
                things=drawn,
                thing=thing,
                two_sided=two_sided,
            )

        return JsonResponse(_plain(await scenes.ask(request, call)))


def _check_once(request: Request) -> None:
    """Refuses a query that says a thing twice, of which only one could count."""
    names = [name for name, _ in request.query_params.multi_items()]
    for name in names:
        if names.count(name) > 1:
            raise Refusal(422, f"{name[:50]}: it is given {names.count(name)} times; give it once")


def _things(asked: Sequence[SceneThingAsked]) -> list["SceneThing"]:
    from ngsan.studio.scenes import SceneThing

    return [SceneThing(**thing.model_dump()) for thing in asked]


def _plain(answer: Any) -> dict[str, Any]:
    """The fields of a dataclass, also of one in it, as JSON values.

    Not `dataclasses.asdict`, which takes longer over the numbers of maps than the model does.
    """
    fields = {item.name: getattr(answer, item.name) for item in dataclasses.fields(answer)}
    return {
        name: _plain(value) if dataclasses.is_dataclass(value) else value
        for name, value in fields.items()
    }

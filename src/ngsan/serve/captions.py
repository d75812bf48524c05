"""`POST /v1/caption`: captions of photographs.

Shapes: `N` cells of a photograph, row by row.
"""

import asyncio
from typing import Any

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from ngsan.light.constraints import Constraints
from ngsan.light.photos import PhotoCaption
from ngsan.serve.desk import Desk
from ngsan.serve.options import Asked, read_options
from ngsan.serve.reading import Sent, Square, read_sent, read_squares
from ngsan.serve.refusals import JsonResponse, Refusal
from ngsan.serve.schemas import Captions, photographs, problems
from ngsan.serve.waiting import finish


def add_caption_routes(app: FastAPI, desk: Desk) -> None:
    """Adds the address to a server."""

    @app.post(
        "/v1/caption",
        summary="Captions of photographs",
        response_model=None,
        responses={
            200: {"model": Captions, "description": "Captions in the order of the photographs."},
            **problems(400, 401, 408, 413, 415, 422, 429, 503),
        },
        openapi_extra={"requestBody": photographs(desk.settings, several=True)},
    )
    async def caption(request: Request) -> Response:
        """Writes a caption of each photograph: JPEG, PNG, WebP, GIF, BMP or TIFF.

        A request is answered as a whole: if one photograph cannot be read, none is captioned.
        """
        desk.check_room(desk.places)
        sent = await read_sent(request, desk.settings, desk.readers)
        asked = understand(desk, sent)
        with desk.places.held(len(sent.images)) as there_is_room:
            if not there_is_room:
                raise Refusal(429, "there is too much to do at the moment; try again")
            results = await finish(
                _write(desk, sent, asked), request.receive, seconds=desk.settings.answer_seconds
            )
        return JsonResponse({"model": desk.model.name, "results": results})


def understand(desk: Desk, sent: Sent) -> Asked:
    """The options of a request.

    Raises:
        Refusal: They are wrong, or the model cannot do what they ask for.
    """
    try:
        asked = read_options(sent.options, desk.settings, texts=sent.texts)
        Constraints.of(asked.decoding, desk.model.captioner.vocabulary)
    except ValueError as error:
        raise Refusal(422, str(error)) from None
    desk.check_model(asked.model)
    return asked


async def _write(desk: Desk, sent: Sent, asked: Asked) -> list[dict[str, Any]]:
    size = desk.model.captioner.image_size
    squares = await read_squares(sent.images, size, desk.settings, desk.readers)
    sent.images.clear()  # the files are of no more use, and may be large
    try:
        captions = await asyncio.gather(
            *(
                desk.batcher.caption(
                    square.pixels,
                    decoding=asked.decoding,
                    attention=asked.attention,
                    number=number,
                )
                for number, square in enumerate(squares)
            )
        )
    except ValueError as error:
        raise Refusal(422, str(error)) from None
    return [
        _result(caption, square, desk.model.grid)
        for caption, square in zip(captions, squares, strict=True)
    ]


def _result(caption: PhotoCaption, square: Square, grid: tuple[int, int]) -> dict[str, Any]:
    made = {
        **_numbers(caption),
        "words": caption.words,
        "others": [_numbers(other) for other in caption.others],
        "width": square.width,
        "height": square.height,
        "grid": list(grid),
    }
    if caption.attention is not None:
        made["attention"] = [
            [round(share, 5) for share in word] for word in caption.attention.tolist()
        ]
    return made


def _numbers(caption: PhotoCaption) -> dict[str, Any]:
    return {
        "caption": caption.text,
        "score": round(caption.score, 6),
        "log_probability": round(caption.log_probability, 6),
    }

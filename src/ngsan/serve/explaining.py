"""`POST /v1/explain`: a photograph's caption, and everything that was looked at.

It needs torch, which takes seconds to import and is imported when it is first asked for.
"""

import base64
import threading
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from PIL import Image
from starlette.requests import Request
from starlette.responses import Response

from ngsan.serve.captions import understand
from ngsan.serve.desk import Desk
from ngsan.serve.looking import Looking, surfaces_of, take_looking
from ngsan.serve.options import Asked
from ngsan.serve.reading import Sent, Square, read_sent, read_squares
from ngsan.serve.refusals import JsonResponse, Refusal
from ngsan.serve.schemas import Explanation, photographs, problems
from ngsan.serve.waiting import finish

if TYPE_CHECKING:
    from ngsan.explain import Explainer


def add_explain_routes(app: FastAPI, desk: Desk) -> None:
    """Adds the address to a server."""
    opener = _Opener(desk)

    @app.post(
        "/v1/explain",
        summary="What a caption looked at",
        response_model=None,
        responses={
            200: {"model": Explanation, "description": "The caption and the maps."},
            **problems(400, 401, 408, 413, 415, 422, 429, 503),
        },
        openapi_extra={"requestBody": photographs(desk.settings, several=False)},
    )
    async def explain(request: Request) -> Response:
        """Captions a photograph, or takes the caption that is given, and tells what was looked at.

        Maps are in `blob`, in base64: each has the scales of its rows as little-endian float32 from
        the byte `at` on, and then a byte for each number. Without signs 255 stands for the scale
        and 0 for zero; with signs 255 for the scale, 128 for zero and 1 for minus the scale. With
        `region` the geometric bias of that cell is told as `surfaces`, like that of `/v1/bias`.
        """
        desk.check_room(desk.explaining)
        with desk.explaining.held():
            sent = await read_sent(request, desk.settings, desk.readers)
            if len(sent.images) > 1:
                raise Refusal(422, "one photograph is explained at a time")
            said = _said(desk, sent)
            looking = take_looking(sent.options, texts=sent.texts)
            asked = understand(desk, sent)
            found = await finish(
                _explain(desk, opener, sent, asked, said, looking),
                request.receive,
                seconds=desk.settings.answer_seconds,
            )
        return JsonResponse(found)


def _said(desk: Desk, sent: Sent) -> str | None:
    """The caption that is to be explained, taken out of the options; None to write one."""
    said = sent.options.pop("caption", None)
    if said is None:
        return None
    if not isinstance(said, str) or not said.split():
        raise Refusal(422, "caption: give the words of the caption to explain")
    words = said.lower().split()
    if len(words) > desk.settings.most_words:
        raise Refusal(422, f"caption: more than {desk.settings.most_words} words are not taken")
    unknown = [word for word in words if word not in desk.model.captioner.vocabulary]
    if unknown:
        raise Refusal(422, f"caption: {unknown[0][:50]!r} is not a word of the model")
    return " ".join(words)


async def _explain(
    desk: Desk,
    opener: "_Opener",
    sent: Sent,
    asked: Asked,
    said: str | None,
    looking: Looking | None,
) -> dict[str, Any]:
    size = desk.model.captioner.image_size
    (square,) = await read_squares(sent.images, size, desk.settings, desk.readers)
    try:
        if said is None:  # as `/v1/caption` writes it, so that both say the same
            said = await desk.batcher.caption(
                square.pixels, decoding=asked.decoding, attention=False, number=0
            )
        return await desk.explainers.do(_maps, opener, square, str(said), looking)
    except ValueError as error:
        raise Refusal(422, str(error)) from None


class _Opener:
    """The model in torch, opened once."""

    def __init__(self, desk: Desk) -> None:
        self._folder, self._lock = desk.model.folder, threading.Lock()
        self._found: Explainer | None = None

    def open(self) -> "Explainer":
        from ngsan.explain import Explainer

        with self._lock:
            if self._found is None:
                self._found = Explainer.open(self._folder)
            return self._found


def _maps(opener: _Opener, square: Square, said: str, looking: Looking | None) -> dict[str, Any]:
    from ngsan.explain.packing import Blob
    from ngsan.explain.section import FARTHEST

    explainer = opener.open()
    explained = explainer.explain(Image.fromarray(square.pixels), said=[said])
    first, blob = explained.captions[0], Blob()
    regions = {"weights": blob.put(explained.weights), "content": blob.put(explained.content)}
    if explained.geometry is not None:
        told = explained.geometry.clip(-FARTHEST, FARTHEST)
        regions["geometry"] = blob.put(told, signed=True)
    surfaces = {} if looking is None else {"surfaces": surfaces_of(explainer, square, looking)}
    return {
        "caption": first.text,
        "words": list(first.words),
        "width": square.width,
        "height": square.height,
        "grid": list(explainer.grid),
        "probabilities": [round(share, 5) for share in first.probabilities],
        "regions": regions,
        "attention": blob.put(first.attention),
        "blob": base64.b64encode(blob.content()).decode(),
        **surfaces,
    }

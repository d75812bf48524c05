"""`/v1/caption` and `/v1/explain`: captions of photographs, and the attention behind them."""

import asyncio
import dataclasses
from typing import Any

from fastapi import FastAPI
from PIL import Image
from starlette.requests import Request
from starlette.responses import Response

from ngsan.app.attention import check_index
from ngsan.app.context import Context
from ngsan.app.errors import ApiError, JsonResponse
from ngsan.app.maps import LARGEST_BIAS, Blob, Explainer
from ngsan.app.options import CaptionRequest, read_options
from ngsan.app.schemas import Captions, Explanation, answers, photo_body
from ngsan.app.uploads import DecodedPhoto, Upload, decode_photos, read_upload
from ngsan.app.workers import run_unless_disconnected
from ngsan.predict.captioner import Caption
from ngsan.predict.quality import check_quality
from ngsan.search import Constraints

_ERRORS = (400, 401, 408, 413, 415, 422, 429, 503)


def add_photo_routes(app: FastAPI, context: Context) -> None:
    """Adds the routes to a server."""
    settings = context.settings

    @app.post(
        "/v1/caption",
        summary="Caption photographs",
        response_model=None,
        responses=answers(Captions, "Captions in the order of the photographs.", *_ERRORS),
        openapi_extra={"requestBody": photo_body(settings, explain=False)},
    )
    async def caption(request: Request) -> Response:
        """Captions each photograph: JPEG, PNG, WebP, GIF, BMP or TIFF.

        If one photograph cannot be read, the whole request fails.
        """
        context.check_capacity(context.photos)
        upload = await read_upload(request, settings)
        options = _read_options(context, upload)
        with context.photos.reserved(len(upload.images)):
            results = await run_unless_disconnected(
                _caption(context, upload, options),
                request.receive,
                timeout=settings.request_timeout,
            )
        return JsonResponse({"model": context.model.name, "results": results})

    @app.post(
        "/v1/explain",
        summary="Explain a caption",
        response_model=None,
        responses=answers(Explanation, "The caption and the maps.", *_ERRORS),
        openapi_extra={"requestBody": photo_body(settings, explain=True)},
    )
    async def explain(request: Request) -> Response:
        """Captions a photograph, or reads the given caption, and returns the attention maps.

        Maps are in `blob`, in base64. At byte `at` each has the scales of its rows as little-endian
        float32, followed by one byte per number: 255 is the scale and 0 is zero; in signed maps 255
        is the scale, 128 is zero and 1 is minus the scale. With `region`, `surfaces` holds the
        geometric bias of that cell, as in `/v1/bias`.
        """
        with context.explain_requests.reserved():
            upload = await read_upload(request, settings)
            if len(upload.images) > 1:
                raise ApiError(422, "send one photograph at a time")
            options = _read_options(context, upload, explain=True)
            text = _given_caption(context, options.caption)
            found = await run_unless_disconnected(
                _explain(context, upload, options, text),
                request.receive,
                timeout=settings.request_timeout,
            )
        return JsonResponse(found)


def _read_options(context: Context, upload: Upload, *, explain: bool = False) -> CaptionRequest:
    try:
        options = read_options(
            upload.options, context.settings, from_form=upload.from_form, explain=explain
        )
        captioner = context.model.captioner
        Constraints.of(options.decoding, captioner.vocabulary)
        check_quality(options.quality, agrees=captioner.agreement is not None)
    except ValueError as error:
        raise ApiError(422, str(error)) from None
    context.check_model(options.model)
    return options


async def _caption(
    context: Context, upload: Upload, options: CaptionRequest
) -> list[dict[str, Any]]:
    photos = await _decode(context, upload, options)
    upload.images.clear()  # the files may be large and are not needed any longer
    try:
        captions = await asyncio.gather(
            *(
                context.batcher.caption(
                    photo.squares,
                    quality=options.quality,
                    decoding=options.decoding,
                    attention=options.attention,
                    number=number,
                )
                for number, photo in enumerate(photos)
            )
        )
    except ValueError as error:
        raise ApiError(422, str(error)) from None
    results = []
    for caption, photo in zip(captions, photos, strict=True):
        result = _result(caption, photo, context.model.grid)
        results.append(result | await _seen(context, photo, caption, options))
    return results


async def _decode(context: Context, upload: Upload, options: CaptionRequest) -> list[DecodedPhoto]:
    """The photographs as squares for the captioner, and for whatever else looks at them."""
    captioner = context.model.captioner

    def sides() -> tuple[int, ...]:
        """What is needed; opens the second eye, the first time."""
        needed = [*captioner.sides(options.quality)]
        if options.objects:
            needed.append(captioner.detector.size)
        if options.keywords:
            needed.append(captioner.eye.keywords.size)
        return tuple(dict.fromkeys(needed))

    kind = options.quality, options.objects, options.keywords
    if kind not in context.sides:  # once, rather than behind the detectors' work for others
        context.sides[kind] = await context.detectors.run(sides)
    return await decode_photos(upload.images, context.sides[kind], context)


async def _seen(
    context: Context, photo: DecodedPhoto, caption: Caption, options: CaptionRequest
) -> dict[str, Any]:
    """The objects and keywords of a photograph, as far as they are asked for."""
    captioner, threads = context.model.captioner, context.detectors
    squares = {len(one): one for one in photo.squares}
    seen: dict[str, Any] = {}
    if options.objects:
        seen["objects"] = caption.objects
        if caption.objects is None:
            square = squares[captioner.detector.size]
            seen["objects"] = await threads.run(captioner.objects, square)
    if options.keywords:
        seen["keywords"] = caption.keywords
        if caption.keywords is None:
            square = squares[captioner.eye.keywords.size]
            seen["keywords"] = await threads.run(captioner.keywords, square)
    return {name: [one.as_record() for one in found] for name, found in seen.items()}


def _result(caption: Caption, photo: DecodedPhoto, grid: tuple[int, int]) -> dict[str, Any]:
    result = {
        **_scores(caption),
        "words": caption.words,
        "others": [_scores(other) for other in caption.others],
        "width": photo.width,
        "height": photo.height,
        "grid": list(grid),
    }
    if caption.attention is not None:
        result["attention"] = [
            [round(share, 5) for share in word] for word in caption.attention.tolist()
        ]
    return result


def _scores(caption: Caption) -> dict[str, Any]:
    found: dict[str, Any] = {
        "caption": caption.text,
        "score": round(caption.score, 6),
        "log_probability": round(caption.log_probability, 6),
    }
    if caption.confidence is not None:
        found["confidence"] = round(caption.confidence, 4)
    return found


def _given_caption(context: Context, text: str | None) -> str | None:
    """The caption to explain, checked; None to write one."""
    if text is None:
        return None
    words = text.lower().split()
    if not words:
        raise ApiError(422, "caption: send the words of the caption to explain")
    for word in words:
        if word not in context.model.captioner.vocabulary:
            raise ApiError(422, f"caption: {word[:50]!r} is not in the model's vocabulary")
    return " ".join(words)


async def _explain(
    context: Context,
    upload: Upload,
    options: CaptionRequest,
    text: str | None,
) -> dict[str, Any]:
    (photo,) = await _decode(context, upload, options)
    caption = Caption(text or "")
    try:
        if text is None:  # written as `/v1/caption` does it, so that both answer the same
            caption = await context.batcher.caption(
                photo.squares,
                quality=options.quality,
                decoding=options.decoding,
                attention=False,
                number=0,
            )
        found = await context.explainers.run(
            lambda: _maps(context.explainer, photo, caption.text, options)
        )
    except ValueError as error:
        raise ApiError(422, str(error)) from None
    if caption.confidence is not None:
        found["confidence"] = round(caption.confidence, 4)
    return found | await _seen(context, photo, caption, options)


def _maps(
    explainer: Explainer, photo: DecodedPhoto, text: str, options: CaptionRequest
) -> dict[str, Any]:
    found = explainer.explain(Image.fromarray(photo.squares[0]), [text])
    caption, blob = found.captions[0], Blob()
    regions = {"weights": blob.put(found.weights), "content": blob.put(found.content)}
    if found.geometry is not None:
        clipped = found.geometry.clip(-LARGEST_BIAS, LARGEST_BIAS)
        regions["geometry"] = blob.put(clipped, signed=True)
    surfaces = {}
    if options.region is not None:
        if found.inputs is None:
            raise ValueError("region: this model has no geometric bias")
        check_index("region", options.region, found.inputs.shape[1])
        surfaces["surfaces"] = dataclasses.asdict(
            explainer.model.surfaces(
                layer=options.layer,
                head=options.head,
                query=found.inputs[:, options.region],
                key=found.inputs.mean(1),
                two_sided=explainer.config.signed_geometry,
            )
        )
    return {
        "caption": caption.text,
        "words": list(caption.words),
        "width": photo.width,
        "height": photo.height,
        "grid": list(explainer.grid),
        "probabilities": [round(share, 5) for share in caption.probabilities],
        "regions": regions,
        "attention": blob.put(caption.attention),
        "blob": blob.base64(),
        **surfaces,
    }

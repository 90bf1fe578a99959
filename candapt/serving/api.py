"""The JSON API: predictions, health, and what is served."""

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Annotated, Any, TypeVar

from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from candapt.data.decoding import BrokenImageError
from candapt.evaluation.reference import NEIGHBORS
from candapt.serving import pages, schema
from candapt.serving.batching import Batcher, Read
from candapt.serving.engine import Array, Outcome
from candapt.serving.guard import Access, Guard, refuse
from candapt.serving.inputs import ImageReader, parse_arrays
from candapt.serving.limits import Reservation, UploadMemory
from candapt.serving.refusal import RefusedError, refused_files
from candapt.serving.service import Service
from candapt.serving.uploads import FORM, JSON, Upload, content_type, in_time, read_files, read_text
from candapt.storage.runs import versions
from candapt.storage.safe_reading import shortened

log = logging.getLogger(__name__)

MAX_TOP = 1000  # classes that an answer lists for each sample

Result = TypeVar("Result")

REFUSALS = {
    400: "The body is damaged, or not of the type that it declares.",
    401: "A token is needed.",
    403: "The request comes from a page of another server.",
    408: "The request took too long to arrive.",
    413: "Too many samples, too many bytes or too many pixels.",
    415: "Not an image in a known format, or a body of another type.",
    421: "The request is for another server.",
    422: "Samples of another shape, or a parameter out of its range.",
    503: "The queue is full; the header Retry-After says when to try again.",
}


class Api:
    """The endpoints over a service."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.batcher = Batcher(service.engine.predict, service.limits)
        self.memory = UploadMemory(service.limits.upload_bytes)

    async def health(self) -> schema.Health:
        """Say that the server works."""
        return schema.Health(status="ok", waiting=self.batcher.waiting, predicted=self.batcher.done)

    async def model(self) -> schema.ModelFacts:
        """Describe the model: classes, method, input, versions, and label-free evidence of how good it is."""
        return schema.ModelFacts(**self.service.describe())

    async def predict(
        self,
        request: Request,
        top: Annotated[int, Query(ge=1, le=MAX_TOP, description="Classes to list for each sample.")] = 5,
        similar: Annotated[int, Query(ge=0, le=NEIGHBORS, description="Source samples to list for each.")] = 5,
        pictures: Annotated[bool, Query(description="Send pictures of the source samples.")] = False,
    ) -> schema.Predictions:
        """Predict the samples of a request."""
        self.batcher.require_room(1)
        with self.memory.reserved() as reservation:
            names, reads = await self._samples(request, reservation)
            outcomes = await _unless_gone(request, self.batcher.outcomes(reads))
            good = _all_good(names, outcomes)
            loop = asyncio.get_running_loop()
            answer = partial(self._answers, names, good, top, similar, pictures)
            return schema.Predictions(predictions=await loop.run_in_executor(self.batcher.readers, answer))

    async def _samples(self, request: Request, reservation: Reservation) -> tuple[list[str], list[Read]]:
        """The names of the samples, and what reads each of them."""
        kind, limits, service = content_type(request), self.service.limits, self.service
        loop, readers = asyncio.get_running_loop(), self.batcher.readers
        if kind == FORM and service.images is not None:
            files = await in_time(lambda: read_files(request, limits, reservation), limits.seconds)
            if not files:
                raise RefusedError(400, "The form has no file: send at least one image.")
            await loop.run_in_executor(readers, _check_headers, service.images, files)
            return [each.name for each in files], [partial(service.images.read, each) for each in files]
        if kind == JSON and service.takes_arrays:
            largest = limits.json_bytes(math.prod(service.shape))
            text = await in_time(lambda: read_text(request, largest, reservation), limits.seconds)
            arrays = await loop.run_in_executor(readers, parse_arrays, text, service.shape, limits.samples)
            return [str(row) for row in range(len(arrays))], [partial(_itself, row) for row in arrays]
        accepted = [FORM] * (service.images is not None) + [JSON] * service.takes_arrays
        raise RefusedError(415, f"Send the samples as {' or '.join(accepted)}; /docs shows how.")

    def _answers(
        self, names: Sequence[str], outcomes: Sequence[Outcome], top: int, similar: int, pictures: bool
    ) -> list[schema.Prediction]:
        """The answers, with pictures if they are wanted."""
        pairs = zip(names, outcomes, strict=True)
        answers = (self.service.answer(*pair, top, similar, pictures=pictures) for pair in pairs)
        return [schema.Prediction(**answer) for answer in answers]


def _check_headers(reader: ImageReader, files: Sequence[Upload]) -> None:
    """Raise a `RefusedError` that names the files which are no images or too large, before any of them is decoded."""
    broken = []
    for each in files:
        try:
            reader.check(each)
        except BrokenImageError as error:
            broken.append((each.name, error))
    if broken:
        raise refused_files(broken, len(files))


def _all_good(names: Sequence[str], outcomes: Sequence[Outcome | BaseException]) -> list[Outcome]:
    """The outcomes, if every sample has one; a `RefusedError` that names the files which cannot be decoded."""
    pairs = list(zip(names, outcomes, strict=True))
    broken = [(name, each) for name, each in pairs if isinstance(each, BrokenImageError)]
    if broken:
        raise refused_files(broken, len(names))
    good = [each for each in outcomes if isinstance(each, Outcome)]
    if len(good) < len(outcomes):
        raise next(each for each in outcomes if isinstance(each, BaseException))
    return good


async def _unless_gone(request: Request, work: Coroutine[Any, Any, Result]) -> Result:
    """The result of the work, which ends early if the client leaves."""
    task = asyncio.create_task(work)
    gone = asyncio.create_task(_disconnected(request))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise RefusedError(400, "The connection ended before the answer.")
        return task.result()
    finally:
        for each in (task, gone):
            each.cancel()


async def _disconnected(request: Request) -> None:
    """Return when the client has left."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _itself(row: Array) -> Array:
    return row


def make_app(service: Service, access: Access | None = None) -> FastAPI:
    """The application: API, pages, and who may use them."""
    api = Api(service)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with api.batcher.running():
            yield

    app = FastAPI(
        title="candapt serve",
        summary="Predictions of an adapted classifier, with calibrated confidence.",
        version=versions()["candapt"],
        docs_url=None,  # FastAPI's own page is loaded from another server
        redoc_url=None,
        lifespan=lifespan,
    )
    _add_routes(app, api)
    _add_refusals(app)
    app.add_middleware(Guard, access=access or Access())
    app.state.api = api
    return app


def _add_routes(app: FastAPI, api: Api) -> None:
    body = {"requestBody": {"required": True, "content": request_content(api.service)}}
    app.add_api_route("/predict", api.predict, methods=["POST"], responses=_documented(*REFUSALS), openapi_extra=body)
    app.add_api_route("/health", api.health, responses=_documented(403, 421))
    app.add_api_route("/model", api.model, responses=_documented(401, 403, 421))

    async def start() -> HTMLResponse:
        return pages.start_page()

    async def docs(request: Request) -> HTMLResponse:
        return pages.docs_page(app.openapi(), str(request.base_url).rstrip("/"))

    app.add_api_route("/", start, include_in_schema=False)
    app.add_api_route("/docs", docs, include_in_schema=False)


def _documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Refusals for the description of the API."""
    return {status: {"model": schema.Error, "description": REFUSALS[status]} for status in statuses}


def request_content(service: Service) -> dict[str, Any]:
    """The types of a request's body, for the description of the API."""
    content: dict[str, Any] = {}
    if service.images is not None:
        file = {"type": "string", "format": "binary"}
        files = {"type": "array", "items": file, "minItems": 1, "maxItems": service.limits.samples}
        content[FORM] = {"schema": {"type": "object", "properties": {"images": files}, "required": ["images"]}}
    if service.takes_arrays:
        array: dict[str, Any] = {"type": "number"}
        for length in reversed(service.shape):
            array = {"type": "array", "items": array, "minItems": length, "maxItems": length}
        rows = {"type": "array", "items": array, "minItems": 1, "maxItems": service.limits.samples}
        content[JSON] = {"schema": {"type": "object", "properties": {"samples": rows}, "required": ["samples"]}}
    return content


def _add_refusals(app: FastAPI) -> None:
    """Every error is an answer in one sentence."""

    async def refused(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RefusedError)
        return refuse(error)

    async def invalid(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"][1:])
        return refuse(
            RefusedError(422, f"The parameter {shortened(name, 80)} is wrong: {shortened(first['msg'], 160)}.")
        )

    async def known(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        sentences = {404: "There is nothing at this address; /docs lists what there is.", 405: "Use another method."}
        headers = dict(error.headers or {})
        return refuse(
            RefusedError(error.status_code, sentences.get(error.status_code, f"{error.detail}."), headers=headers)
        )

    async def failed(_: Request, error: Exception) -> JSONResponse:
        return refuse(RefusedError(500, "The server failed to answer; its log says why."))

    app.add_exception_handler(RefusedError, refused)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, known)
    app.add_exception_handler(Exception, failed)

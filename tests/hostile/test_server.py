"""A running server under attack, and requests that its own description allows and forbids."""

import asyncio
from contextlib import suppress
from importlib import import_module

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable

from ngsan.vision.decoding import DecodingService
from tests.app.stand_in import ask, make_app
from tests.hostile import attacks, soak
from tests.hostile.limits import FULL, SECONDS

pytestmark = pytest.mark.slow


@pytest.mark.skipif(not FULL, reason="the short soak sends some of them")
def test_each_hostile_request_alone(tally):
    """It is answered in time, is not an error of the server, and leaves it as it was."""
    requests = attacks.requests()

    async def send(port, sent):
        return await asyncio.wait_for(attacks.exchange(port, "127.0.0.1", sent), 6 * SECONDS)

    with soak.serving() as (process, port):
        good = attacks.request("/v1/caption", attacks.FORM, attacks.form(soak.PHOTOS[0]))
        assert asyncio.run(send(port, good))[0] == 200
        for name in requests:
            status, _ = asyncio.run(send(port, requests[name]))
            assert status != 500, name
            memory, _, _ = soak.usage(process.pid)
            assert memory < soak.MEMORY, (name, memory)
        assert asyncio.run(send(port, good))[0] == 200
    tally(len(requests))


def test_a_short_soak(tally):
    """Latencies are asserted by `python -m tests.hostile.soak`, on a machine with nothing else."""
    figures = soak.run(60 if FULL else 10)
    assert not soak.failures(figures, skip=soak.TIMED), figures
    tally(figures["hostile requests"])


@pytest.mark.parametrize("mode", ["POSITIVE", "NEGATIVE"])
def test_the_api_follows_its_description(mode, tally):
    """No answer of a generated request is an error of the server or one that is not described."""
    schemathesis = pytest.importorskip("schemathesis")
    checks = import_module("schemathesis.checks")
    conformance = import_module("schemathesis.specs.openapi.checks")
    validator = import_module("jsonschema_rs").Draft202012Validator
    wanted = (
        checks.not_a_server_error,
        conformance.status_code_conformance,
        conformance.content_type_conformance,
    )
    app = make_app(decoding=DecodingService(1), allowed_hosts="*")
    schema = schemathesis.openapi.from_asgi("/openapi.json", app)
    written = ask(app, "GET", "/openapi.json").json()
    calls = 0
    for found in schema.get_all_operations():
        operation = found.ok()

        @given(operation.as_strategy(generation_mode=schemathesis.GenerationMode[mode]))
        @settings(max_examples=150 if FULL else 6, suppress_health_check=list(HealthCheck))
        def check(case):
            nonlocal calls
            calls += 1
            answer = case.call()
            case.validate_response(answer, checks=wanted)
            responses = written["paths"][case.path][case.method.lower()]["responses"]
            content = responses[str(answer.status_code)].get("content", {})
            if "schema" in content.get("application/json", {}):
                described = content["application/json"]["schema"]
                root = {**described, "components": written["components"]}
                validator(root).validate(answer.json())

        # Where every request is allowed, there is none to forbid.
        with suppress(Unsatisfiable):
            check()
    # Python may not end while a thread opens a model.
    assert ask(app, "GET", "/v1/models").status_code == 200
    for threads in (app.state.context.explainers, app.state.context.detectors):
        asyncio.run(threads.run(int))
    assert calls > 20
    tally(calls)

"""Requests made up from the API's own description: whatever it allows or forbids, the server does not fail."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from tests.serving.shared import serving

schemathesis = pytest.importorskip("schemathesis")
checks = pytest.importorskip("schemathesis.specs.openapi.checks")

CHECKS = (
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
    checks.response_headers_conformance,
)
QUICKLY = settings(
    max_examples=20, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)


@pytest.mark.parametrize("mode", list(schemathesis.GenerationMode), ids=lambda mode: str(mode.value))
@pytest.mark.parametrize("kind", ["photo", "vector"])
def test_no_request_makes_it_fail(kind: str, mode: Any, request: pytest.FixtureRequest) -> None:
    run: Path = request.getfixturevalue(f"{kind}_run")
    with serving(run, "--max-files", 3) as running:
        description = schemathesis.openapi.from_url(f"{running.address}openapi.json")
        operations = [each.ok() for each in description.get_all_operations()]
        assert {each.path for each in operations} == {"/predict", "/health", "/model"}
        for operation in operations:
            try_out(operation, mode)
        assert "Traceback" not in "\n".join(running.lines)


def try_out(operation: Any, mode: Any) -> None:
    """Call an operation with whatever its description leads to, or in negative mode with what it forbids."""
    if mode == schemathesis.GenerationMode.NEGATIVE and operation.method.upper() == "GET":
        return  # it takes nothing that could be wrong

    @QUICKLY
    @given(case=operation.as_strategy(generation_mode=mode))
    def call(case: Any) -> None:
        answer = case.call()
        assert answer.status_code < 500, answer.text
        case.validate_response(answer, checks=CHECKS)

    call()

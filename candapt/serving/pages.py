"""The page to drop images on and the description of the API: each one HTML file that loads nothing from elsewhere."""

import functools
import json
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.responses import HTMLResponse

from candapt.report.page import content_policy
from candapt.storage.runs import versions


def start_page() -> HTMLResponse:
    """The page to drop images on. What it shows of the model it asks the API for, with a token if one is needed."""
    return _page("start.html", scripts=[_asset("serving", "start.js")])


def docs_page(description: dict[str, Any], origin: str) -> HTMLResponse:
    """The OpenAPI description of the API as a page; the origin is for examples."""
    context = {"operations": list(operations(description)), "info": description["info"], "origin": origin}
    return _page("docs.html", **context)


def operations(description: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The operations of an OpenAPI description, as the page shows them."""
    for path, methods in description["paths"].items():
        for method, operation in methods.items():
            answer = operation["responses"]["200"]["content"]["application/json"]["schema"]
            yield {
                "name": f"{method.upper()} {path}",
                "method": method.upper(),
                "path": path,
                "text": operation["description"],
                "parameters": operation.get("parameters", []),
                "bodies": {
                    kind: json.dumps(outline(each["schema"], description), indent=2, ensure_ascii=False)
                    for kind, each in operation.get("requestBody", {}).get("content", {}).items()
                },
                "answer": json.dumps(outline(answer, description), indent=2, ensure_ascii=False),
                "responses": {
                    status: each["description"] for status, each in operation["responses"].items() if status != "200"
                },
            }


def outline(schema: dict[str, Any], description: dict[str, Any]) -> Any:
    """A JSON schema as an example whose values are the names of their types.

    >>> outline({"type": "array", "items": {"type": "object", "properties": {"a": {"type": "number"}}}}, {})
    [{'a': 'number'}]
    """
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return outline(description["components"]["schemas"][name], description)
    if "anyOf" in schema:
        outlines = [outline(each, description) for each in schema["anyOf"]]
        plain = all(isinstance(each, str) for each in outlines)
        return " or ".join(outlines) if plain else outlines[0]
    if schema.get("type") == "array":
        return [outline(schema["items"], description)]
    if "properties" in schema:
        return {name: outline(each, description) for name, each in schema["properties"].items()}
    if schema.get("type") == "object":
        return {"…": outline(schema.get("additionalProperties", {}), description)}
    return "file" if schema.get("format") == "binary" else str(schema.get("type", "any"))


def _page(template: str, *, scripts: list[str] | None = None, **context: Any) -> HTMLResponse:
    """A page with its policy; it may ask this server and no other."""
    policy = f"{content_policy(scripts or [])}; connect-src 'self'; frame-ancestors 'none'"
    styles = [_asset("report", "page.css"), _asset("serving", "serve.css")]
    text = (
        _environment()
        .get_template(template)
        .render(
            style=Markup("".join(styles)),
            scripts=[Markup(script) for script in scripts or []],
            version=versions()["candapt"],
            **context,
        )
    )
    return HTMLResponse(text, headers={"Content-Security-Policy": policy})


@functools.cache
def _environment() -> Environment:
    loader = PackageLoader("candapt.serving")
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)


@functools.cache
def _asset(package: str, name: str) -> str:
    return files(f"candapt.{package}").joinpath("static", name).read_text(encoding="utf-8")

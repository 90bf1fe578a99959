"""Figures and claims in the sentences of README and docs, computed from the recorded results.

A figure stands within a line, but not at its beginning, where Markdown would end the paragraph:

    reaches <!-- figure mean office31:can Average -->89.2<!-- end --> %

`python -m benchmarks.tables` writes it anew. A row of a recorded suite is RECORD:ROW, such as `office31:can`; a value
of any record is RECORD:PATH, such as `embed:all/decoding=eager/shrunk`, where `key=value` finds an entry of a list.
The figures are the functions in `FIGURES`. Names with spaces are quoted.

A claim stands before the sentence that makes it, and is an error if the records contradict it:

    <!-- claim office31:can > office31:mcc > office31:source-only in Average -->

    A > B     the mean over seeds of A is higher in each of the columns; `<` lower
    A >> B    it is higher by more than the spread: the sum of both standard deviations over seeds; `<<` lower
    A ~ B     neither is higher by more than the spread
    A = B     the same, as printed with one decimal

`in A→W, Average` names the columns; `in every column` means all, and `A→W+D→A` the average of these two. It is left out
between values of other records. A and B are rows, values, numbers (rows are in percent), `paper:RECORD:ROW` for the
paper's figure of a row, or `others:RECORD`: every row of a suite that the claim does not name.

Figures and claims are the only places for measured comparisons: `unmarked` finds sentences that look like others.
"""

import re
import shlex
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.record import load
from candapt.benchmark.suites import SUITES

EVERY = "every column"


@dataclass(frozen=True)
class Quantity:
    """A number with its spread over seeds, where it has one."""

    name: str
    mean: float
    spread: float = 0.0

    def __str__(self) -> str:
        spread = f" ± {self.spread:.2f}" if self.spread else ""
        return f"{self.name} {self.mean:.4g}{spread}"


def row_of(place: str) -> dict[str, Any]:
    """A row of a recorded suite, from RECORD:ROW."""
    record, _, name = place.partition(":")
    rows = load(f"suite-{record}")["rows"]
    found = next((row for row in rows if row["name"] == name), None)
    if found is None:
        raise ValueError(f"{place!r} is no row: {record} has {', '.join(row['name'] for row in rows)}")
    return dict(found)


def reached(place: str, column: str) -> Quantity:
    """What a row reached in a column after the last round, in percent."""
    by_column = [row_of(place)["last"][each] for each in column.split("+")]
    values = [100 * statistics.fmean(of_seed) for of_seed in zip(*by_column, strict=True)]
    return Quantity(f"{place} in {column}", statistics.fmean(values), statistics.stdev(values) if values[1:] else 0.0)


def reported(place: str, column: str) -> Quantity:
    """What the paper reports for a row."""
    figures = row_of(place)["paper"]
    return Quantity(f"paper:{place} in {column}", statistics.fmean(figures[each] for each in column.split("+")))


def value_of(place: str) -> Any:
    """A value of a record, from RECORD:PATH."""
    record, _, path = place.partition(":")
    value: Any = load(record)
    for part in path.split("/"):
        key, equals, wanted = part.partition("=")
        if equals:
            value = next(each for each in value if str(each[key]) == wanted)
        else:
            value = value[int(key)] if isinstance(value, list) else value[key]
    return value


# Figures.


def mean(place: str, column: str = "Average") -> str:
    """The mean of a row, in percent."""
    return f"{reached(place, column).mean:.1f}"


def spread(place: str, column: str = "Average") -> str:
    """The standard deviation of a row over seeds, in points."""
    return f"{reached(place, column).spread:.1f}"


def paper(place: str, column: str = "Average") -> str:
    """The paper's figure of a row."""
    return f"{reported(place, column).mean:.1f}"


def published(suite: str, name: str, column: str = "Average") -> str:
    """The paper's figure of a suite that we did not record."""
    figures = SUITES[suite].paper
    assert figures is not None
    return f"{figures.figures[name][column].mean:.1f}"


def difference(first: str, second: str, column: str = "Average") -> str:
    """By how many points the first row is above the second one."""
    return _signed(reached(first, column).mean - reached(second, column).mean)


def paper_difference(first: str, second: str, column: str = "Average") -> str:
    """The same in the paper's figures."""
    return _signed(reported(first, column).mean - reported(second, column).mean)


def width(column: str, *places: str) -> str:
    """How far the means of these rows lie apart, in points."""
    means = [reached(place, column).mean for place in places]
    return f"{max(means) - min(means):.1f}"


def best(record: str, column: str = "Average", *rows: str) -> str:
    """The row with the highest mean, of these or of all."""
    return f"`{_ranked(record, column, rows)[0]}`"


def close(record: str, column: str = "Average", *rows: str) -> str:
    """The rows that the best one does not exceed by more than the spread."""
    first, *others = _ranked(record, column, rows)
    top = reached(f"{record}:{first}", column)
    return _names(name for name in others if not _exceeds(top, reached(f"{record}:{name}", column)))


def below(place: str, column: str = "Average") -> str:
    """The rows of the same suite with a lower mean."""
    record = place.partition(":")[0]
    ranked, limit = _ranked(record, column), reached(place, column).mean
    return _names(name for name in ranked if reached(f"{record}:{name}", column).mean < limit)


def value(place: str, style: str = "", *minus: str) -> str:
    """A recorded value, or with `- RECORD:PATH` what it has more than another one.

    Styles: `percent` for a share, `points` for the difference of two shares, else as in Python, such as `.1f` or `,`.
    """
    number = value_of(place)
    if minus:
        sign, other = minus
        if sign != "-":
            raise ValueError(f"{sign!r} is no minus")
        number -= value_of(other)
    if style == "points":
        return _signed(100 * number)
    return f"{100 * number:.1f}" if style == "percent" else format(number, style)


def _signed(points: float) -> str:
    return f"{points:+.1f}".replace("-", "−")


def _names(names: Iterator[str]) -> str:
    """Names in a sentence."""
    *most, last = [f"`{name}`" for name in names] or ["none"]
    return f"{', '.join(most)} and {last}" if most else last


def _ranked(record: str, column: str, rows: Sequence[str] = ()) -> list[str]:
    """Names of these rows of a suite, or of all, the best first."""
    names = rows or [row["name"] for row in load(f"suite-{record}")["rows"]]
    return sorted(names, key=lambda name: -reached(f"{record}:{name}", column).mean)


FIGURES: dict[str, Callable[..., str]] = {
    each.__name__: each
    for each in (
        mean,
        spread,
        paper,
        published,
        difference,
        paper_difference,
        width,
        best,
        close,
        below,
        value,
    )
}


def fill_figures(text: str) -> str:
    """The text with every figure written anew."""

    def written(match: re.Match[str]) -> str:
        name, *about = shlex.split(match[1])
        return f"<!-- figure {match[1]} -->{FIGURES[name](*about)}<!-- end -->"

    return re.sub(r"<!-- figure ([^\n]+?) -->[^\n]*?<!-- end -->", written, text)


# Claims.


def check_claims(text: str) -> list[str]:
    """What is wrong with the claims of a page: those that the records contradict, and those that cannot be read."""
    problems = [
        f"a figure may not begin a line: {line}"
        for line in text.splitlines()
        if line.lstrip().startswith("<!-- figure")
    ]
    for claim in re.findall(r"<!-- claim\s+(.*?)\s*-->", text, flags=re.DOTALL):
        try:
            problems += [f"false: {claim} ({reason})" for reason in contradictions(claim)]
        except (LookupError, OSError, StopIteration, TypeError, ValueError) as error:
            problems.append(f"cannot be read: {claim} ({error!r})")
    return problems


def unmarked(text: str) -> list[str]:
    """Sentences that look like a measured comparison but are neither computed nor claims; table cells count too."""
    for outside in (r"<!-- table .*?<!-- end -->", r"^```.*?^```", r"`[^`\n]*`"):
        text = re.sub(outside, "", text, flags=re.DOTALL | re.MULTILINE)
    paragraphs = [" ".join(part.split()) for part in re.split(r"\n\s*\n", text) if "<!-- claim" not in part]
    sentences = [each for part in paragraphs for each in re.split(r"(?<=[.;:!?|]) ", part) if "<!-- figure" not in each]
    return [sentence for sentence in sentences if MEASURED.search(sentence)]


_COUNT = r"(?:\d[\d.,]*|an?|half an?|one|two|three|four|five|six|seven|eight|nine|ten)"
MEASURED = re.compile(
    r"\d[\d.,]*\s?%"  # a share
    rf"|\b{_COUNT} (?:percentage )?points?\b(?! to\b)"  # a difference
    r"|\d against \d"
    r"|\b(?:times|twice|half) (?:as )?(?:fast|faster|slow|slower|long)\b(?! as pretrained)"
    r"|\b(?:highest|lowest|best) (?:average|mean|accuracy)\b"
    r"|\b(?:above|below|beats?|outperforms?) (?:source-only|CAN|[A-Z]{3,4})\b"
)


def contradictions(claim: str) -> list[str]:
    """The comparisons of a claim that do not hold, with their numbers."""
    words = shlex.split(claim)
    columns: list[str] = []
    if "in" in words:
        place = words.index("in")
        columns = [name.strip() for name in " ".join(words[place + 1 :]).split(",")]
        words = words[:place]
    terms, signs = words[::2], words[1::2]
    if not signs or len(terms) != len(signs) + 1 or not set(signs) <= COMPARISONS.keys():
        raise ValueError("a claim is A > B, with one of " + " ".join(COMPARISONS))
    wrong = []
    for left, sign, right in zip(terms, signs, terms[1:], strict=False):
        for first, second in _pairs(left, right, terms, columns):
            if not COMPARISONS[sign](first, second):
                wrong.append(f"{first}, {second}")
    return wrong


def _pairs(left: str, right: str, named: Sequence[str], columns: Sequence[str]) -> Iterator[tuple[Quantity, Quantity]]:
    """What a comparison compares: in every column, every term that each side stands for."""
    for column in _expanded(columns, [left, right]) or [""]:
        for first in _terms(left, named):
            for second in _terms(right, named):
                yield _quantity(first, column), _quantity(second, column)


def _expanded(columns: Sequence[str], terms: Sequence[str]) -> list[str]:
    """The names of the columns."""
    if list(columns) != [EVERY]:
        return list(columns)
    record = next(term.removeprefix("paper:").removeprefix("others:").partition(":")[0] for term in terms)
    return list(load(f"suite-{record}")["columns"])


def _terms(term: str, named: Sequence[str]) -> list[str]:
    """The single terms that a term stands for."""
    if not term.startswith("others:"):
        return [term]
    record = term.partition(":")[2]
    places = [f"{record}:{row['name']}" for row in load(f"suite-{record}")["rows"]]
    return [place for place in places if place not in named]


def _quantity(term: str, column: str) -> Quantity:
    """The number that a single term stands for."""
    if re.fullmatch(r"[-+]?\d+(\.\d+)?", term):
        return Quantity("", float(term))
    if term.startswith("paper:"):
        return reported(term.partition(":")[2], column)
    return reached(term, column) if column else Quantity(term, float(value_of(term)))


def _exceeds(a: Quantity, b: Quantity) -> bool:
    return a.mean - b.mean > a.spread + b.spread


COMPARISONS: dict[str, Callable[[Quantity, Quantity], bool]] = {
    ">": lambda a, b: a.mean > b.mean,
    "<": lambda a, b: a.mean < b.mean,
    ">>": _exceeds,
    "<<": lambda a, b: _exceeds(b, a),
    "~": lambda a, b: not _exceeds(a, b) and not _exceeds(b, a),
    "=": lambda a, b: f"{a.mean:.1f}" == f"{b.mean:.1f}",
}

import re
from pathlib import Path

import pytest

from candapt.benchmark import published
from candapt.benchmark.published import AVERAGE, Figure, Figures
from candapt.benchmark.suites import SUITES
from candapt.methods import METHODS

TABLES = [published.TABLE_1, published.TABLE_2, published.TABLE_4]


@pytest.mark.parametrize("table", TABLES)
def test_each_average_is_the_mean_of_its_row(table: Figures) -> None:
    for row in table.values():
        others = [figure.mean for name, figure in row.items() if name != AVERAGE]
        assert row[AVERAGE].mean == pytest.approx(sum(others) / len(others), abs=0.06)


@pytest.mark.parametrize(
    ("table", "first", "names"),
    [
        (
            published.TABLE_1,
            "A $",
            {
                "Source-finetune": "source-only",
                "RevGrad": "dann",
                "DAN": "dan",
                "JAN": "jan",
                "MADA": "mada",
                "Ours (intra only)": "can-intra",
                "Ours (CAN)": "can",
            },
        ),
        (
            published.TABLE_2,
            r"\rotatebox",
            {
                "Source-finetune": "source-only",
                "RevGrad": "dann",
                "DAN": "dan",
                "JAN": "jan",
                "MCD": "mcd",
                "ADR": "adr",
                "SE": "self-ensembling",
                "Ours (intra only)": "can-intra",
                "Ours (CAN)": "can",
            },
        ),
        (
            published.TABLE_4,
            "A $",
            {"pseudo$_{0}$": "pseudo-fixed", "pseudo$_{1}$": "pseudo-alternating", "CAN": "can"},
        ),
    ],
)
def test_every_number_is_that_of_the_paper(shared: Path, table: Figures, first: str, names: dict[str, str]) -> None:
    tabulars = re.findall(r"\\begin\{tabular\}.*?\\end\{tabular\}", (shared / "paper.tex").read_text(), re.DOTALL)
    text = next(t for t in tabulars if first in t and all(f"\n{name} " in t for name in names))
    rows = {line.split("&")[0].split(r"\cite")[0].strip(): line for line in text.split(r"\\")}
    rows = {name.split("\n")[-1].strip(): line for name, line in rows.items()}
    assert set(names.values()) == set(table)
    for name, method in names.items():
        cells = [re.findall(r"\d+\.\d", cell) for cell in rows[name].split("&")[1:]]
        printed = [Figure(*map(float, cell)) for cell in cells]
        assert printed == list(table[method].values())


def test_table_3(shared: Path) -> None:
    text = (shared / "paper.tex").read_text()
    for dataset, table in (("Office-31", published.TABLE_3_OFFICE31), ("VisDA-2017", published.TABLE_3_VISDA2017)):
        printed = re.search(rf"\n{dataset} *&(.*?)\\\\", text)
        assert printed
        wanted = [table[method][AVERAGE].mean for method in ("can-no-ao", "can-no-cas", "can")]
        assert [float(cell) for cell in printed[1].split("&")] == wanted


def test_suites_use_names_that_exist() -> None:
    for suite in SUITES.values():
        assert set(suite.methods) <= set(METHODS)
        if suite.paper:
            assert {name.split()[0] for name in suite.paper.figures} <= set(METHODS)
            columns = {name for row in suite.paper.figures.values() for name in row} - {AVERAGE}
            assert suite.by_class or columns == {task.name for task in suite.tasks}

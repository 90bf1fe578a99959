"""The numbers of the paper's tables (Kang et al., CVPR 2019, arXiv:1901.00976), in percent."""

from collections.abc import Mapping
from dataclasses import dataclass

AVERAGE = "Average"  # name of the column that averages the others


@dataclass(frozen=True)
class Figure:
    """A number of a table."""

    mean: float
    std: float | None = None  # the number after ±, where there is one


Figures = Mapping[str, Mapping[str, Figure]]  # by method, then by column


@dataclass(frozen=True)
class Published:
    """What the paper reports for a suite."""

    label: str  # name of its rows beside ours
    place: str  # where it reports them
    figures: Figures
    note: str = ""  # what a reader should know about them


def _figures(columns: str, rows: Mapping[str, str]) -> dict[str, dict[str, Figure]]:
    """The figures of rows as they are printed."""
    names = columns.split()
    return {method: dict(zip(names, map(_figure, row.split()), strict=True)) for method, row in rows.items()}


def _figure(cell: str) -> Figure:
    return Figure(*map(float, cell.split("±")))


TABLE_1 = _figures(
    "A→W D→W W→D A→D D→A W→A Average",
    {
        "source-only": "68.4±0.2 96.7±0.1 99.3±0.1 68.9±0.2 62.5±0.3 60.7±0.3 76.1",
        "dann": "82.0±0.4 96.9±0.2 99.1±0.1 79.7±0.4 68.2±0.4 67.4±0.5 82.2",
        "dan": "80.5±0.4 97.1±0.2 99.6±0.1 78.6±0.2 63.6±0.3 62.8±0.2 80.4",
        "jan": "85.4±0.3 97.4±0.2 99.8±0.2 84.7±0.3 68.6±0.3 70.0±0.4 84.3",
        "mada": "90.0±0.2 97.4±0.1 99.6±0.1 87.8±0.2 70.3±0.3 66.4±0.3 85.2",
        "can-intra": "93.2±0.2 98.4±0.2 99.8±0.2 92.9±0.2 76.5±0.3 76.0±0.3 89.5",
        "can": "94.5±0.3 99.1±0.2 99.8±0.2 95.0±0.3 78.0±0.3 77.0±0.3 90.6",
    },
)  # office-31, ResNet-50: accuracy

# The paper calls the first class airplane; the data set's folder is called aeroplane.
TABLE_2 = _figures(
    "aeroplane bicycle bus car horse knife motorcycle person plant skateboard train truck Average",
    {
        "source-only": "72.3 6.1 63.4 91.7 52.7 7.9 80.1 5.6 90.1 18.5 78.1 25.9 49.4",
        "dann": "81.9 77.7 82.8 44.3 81.2 29.5 65.1 28.6 51.9 54.6 82.8 7.8 57.4",
        "dan": "68.1 15.4 76.5 87.0 71.1 48.9 82.3 51.5 88.7 33.2 88.9 42.2 62.8",
        "jan": "75.7 18.7 82.3 86.3 70.2 56.9 80.5 53.8 92.5 32.2 84.5 54.5 65.7",
        "mcd": "87.0 60.9 83.7 64.0 88.9 79.6 84.7 76.9 88.6 40.3 83.0 25.8 71.9",
        "adr": "87.8 79.5 83.7 65.3 92.3 61.8 88.9 73.2 87.8 60.0 85.5 32.3 74.8",
        "self-ensembling": "95.9 87.4 85.2 58.6 96.2 95.7 90.6 80.0 94.8 90.8 88.4 47.9 84.3",
        "can-intra": "96.5 72.1 80.9 70.8 94.6 98.0 91.7 84.2 90.3 89.8 89.4 47.9 83.9",
        "can": "97.0 87.2 82.5 74.3 97.8 96.2 90.8 80.7 96.6 96.3 87.5 59.9 87.2",
    },
)  # VisDA-2017 validation, ResNet-101: accuracy of each class and their mean

TABLE_3_OFFICE31 = _figures(AVERAGE, {"can-no-ao": "88.1", "can-no-cas": "89.1", "can": "90.6"})
TABLE_3_VISDA2017 = _figures(AVERAGE, {"can-no-ao": "77.5", "can-no-cas": "81.6", "can": "87.2"})
"""What alternating optimization and class-aware sampling contribute: the paper prints only means."""

TABLE_4 = _figures(
    "A→W A→D D→A W→A Average",
    {
        "pseudo-fixed": "85.8 86.3 74.9 72.3 79.8",
        "pseudo-alternating": "90.2±1.6 92.5±0.4 75.7±0.2 75.3±0.6 83.4",
        "can": "94.5±0.3 95.0±0.3 78.0±0.3 77.0±0.3 86.1",
    },
)  # ways of using pseudo labels, on four tasks of Office-31

RESNET_50 = "paper (fine-tuned ResNet-50)"
RESNET_101 = "paper (fine-tuned ResNet-101)"


def _without_average(figures: Figures) -> Figures:
    return {method: {name: f for name, f in row.items() if name != AVERAGE} for method, row in figures.items()}


# Of two tables with the same method, the later one here counts. The averages of Table 4 are over four tasks, not six.
OFFICE31 = Published(RESNET_50, "Tables 1, 3 and 4", {**_without_average(TABLE_4), **TABLE_3_OFFICE31, **TABLE_1})
OFFICE31_TABLE3 = Published(RESNET_50, "Tables 1 and 3", {**TABLE_3_OFFICE31, "can": TABLE_1["can"]})
OFFICE31_TABLE4 = Published(RESNET_50, "Table 4", TABLE_4)
# The plot over β has no numbers; the paper's own choice is in Table 1, which averages other tasks.
OFFICE31_BETA = Published(RESNET_50, "Table 1", {"can β=0.3": {t: TABLE_1["can"][t] for t in ("A→D", "D→A")}})
VISDA2017 = Published(
    RESNET_101,
    "Tables 2 and 3",
    {**TABLE_3_VISDA2017, **TABLE_2},
    "The figures of self-ensembling seem to be its authors' own, with ResNet-152.",
)

"""Results of a benchmark that was never run."""

from typing import Any

from candapt.benchmark.results import KINDS


def spread(*values: float) -> dict[str, Any]:
    return {"mean": sum(values) / len(values), "std": 0.0123 if len(values) > 1 else None, "values": list(values)}


def made_results() -> dict[str, Any]:
    """Two methods on two tasks with awkward names."""
    columns = ["art_1→50% & <b>", "a|b", "Average"]
    figures = {
        "can": [spread(0.94512, 0.94512), spread(0.5, 0.5), spread(0.75, 0.75)],
        "dann": [spread(0.8, 0.8), spread(0.50004, 0.50004), spread(0.65, 0.65)],
    }
    rows = [
        {
            "name": name,
            "paper": {"Average": {"mean": 90.6, "std": None}, "a|b": {"mean": 78.0, "std": 0.3}}
            if name == "can"
            else {},
            **{kind: dict(zip(columns, of_method, strict=True)) for kind in KINDS},
        }
        for name, of_method in figures.items()
    ]
    return {
        "title": "Digits & more",
        "protocol": "Accuracy on all.",
        "spread": "sample standard deviation",
        "rule": "last round",
        "seeds": [0, 1],
        "networks": [{"backbone": "resnet50", "finetune": "head"}],
        "paper": {"label": "paper (fine-tuned ResNet-50)", "place": "Table 1", "note": ""},
        "columns": columns,
        "rows": rows,
    }

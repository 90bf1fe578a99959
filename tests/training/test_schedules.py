"""The learning rate's decay against the figures of the authors' code."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from candapt.training.schedules import Schedule, learning_rate_factor

OFFICE, VISDA = (0.001, 0.75), (0.0005, 2.25)


@pytest.mark.parametrize(
    ("decay", "iteration", "expected"),
    [
        (OFFICE, 1000, 5.94604e-4),
        (VISDA, 1000, 4.01601e-4),
        (OFFICE, 4650, 2.72875e-4),
        (VISDA, 4650, 6.69836e-5),
        (OFFICE, 25400, 8.58612e-5),
        (VISDA, 25400, 2.76936e-6),
    ],
)
def test_check_values_by_iteration(decay: tuple[float, float], iteration: int, expected: float) -> None:
    slope, power = decay
    factor = learning_rate_factor("iteration", progress=0.3, iteration=iteration, slope=slope, power=power)
    assert 0.001 * factor == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("power", [0.75, 2.25])
def test_by_progress_as_the_paper_writes(power: float) -> None:
    factors = [
        learning_rate_factor("progress", progress=p, iteration=99, slope=10, power=power) for p in (0.0, 0.25, 0.5, 1.0)
    ]
    assert factors == pytest.approx([1, 3.5**-power, 6**-power, 11**-power])


def test_constant_does_not_decay() -> None:
    assert learning_rate_factor("constant", progress=0.9, iteration=900, slope=10, power=2) == 1


@given(st.sampled_from(["progress", "iteration"]), st.floats(0, 1), st.floats(0, 1), st.floats(0, 20), st.floats(0, 3))
def test_it_starts_at_one_and_never_grows(kind: Schedule, p: float, q: float, slope: float, power: float) -> None:
    def factor(position: float) -> float:
        return learning_rate_factor(kind, progress=position, iteration=int(1e4 * position), slope=slope, power=power)

    assert factor(0) == 1
    assert 0 < factor(max(p, q)) <= factor(min(p, q)) <= 1

"""Random numbers as a function of where they are used."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from candapt.randomness import derive_seed, generator, seed_draws

parts = st.lists(st.integers(-(2**40), 2**40) | st.text(max_size=8), min_size=1, max_size=4)


KNOWN = 4_694_126_669_496_371_513
"""The seed of (0, "network")."""


@given(parts)
def test_a_seed_is_a_function_of_its_parts(names: list[int | str]) -> None:
    assert derive_seed(*names) == derive_seed(*names)
    assert 0 <= derive_seed(*names) < 2**63


@given(parts, parts)
def test_other_parts_give_another_seed(first: list[int | str], second: list[int | str]) -> None:
    assert (derive_seed(*first) == derive_seed(*second)) is (first == second)


def test_parts_do_not_run_together() -> None:
    seeds = {derive_seed(1, 23), derive_seed(12, 3), derive_seed("1", 23), derive_seed("1", "23"), derive_seed("123")}
    assert len(seeds) == 5


def test_it_is_the_same_in_every_process_and_version() -> None:
    """Unlike `hash`, which Python varies from process to process."""
    assert derive_seed(0, "network") == KNOWN


def test_generators_start_from_their_seed_and_leave_the_global_one_alone() -> None:
    before = torch.get_rng_state()
    first, second, other = (torch.rand(5, generator=generator(*names)) for names in ((0, "a"), (0, "a"), (0, "b")))
    assert torch.equal(first, second)
    assert not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_seeded_step_draws_as_torch_itself_would() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(7)
        expected = torch.rand(5)
        seed_draws(7, torch.device("cpu"))
        assert torch.equal(torch.rand(5), expected)

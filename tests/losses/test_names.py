"""The names that the package of the losses offers."""

import inspect

from candapt import losses


def test_everything_that_is_offered_is_there_and_documented() -> None:
    for name in losses.__all__:
        assert inspect.getdoc(getattr(losses, name)), name


def test_everything_that_is_there_is_offered() -> None:
    imported = {
        name for name, value in vars(losses).items() if not name.startswith("_") and not inspect.ismodule(value)
    }
    assert imported == set(losses.__all__)

"""The one exception whose message is meant for the user."""


class UserError(ValueError):
    """Something the user can put right.

    The message is one sentence: what is wrong, where, and what to do. The command line prints it without a
    traceback and leaves with exit code 2; it is a `ValueError` so that scikit-learn's tools treat it as bad input.
    """

"""Random numbers as a function of where they are used.

Every draw depends on the run's seed, the round, the step and a word for its purpose, never on what was drawn before.
A run can therefore be continued from any step without saving the state of a generator, and the number of loader
workers or processes does not change what a batch holds.
"""

import hashlib

import torch


def derive_seed(*parts: int | str) -> int:
    """Mix the parts into one seed below 2**63, the same on every machine and in every process.

    >>> derive_seed(0, "batches") == derive_seed(0, "batches") != derive_seed(1, "batches")
    True
    """
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def seed_draws(seed: int, device: torch.device) -> None:
    """Seed what layers like dropout draw from on that device.

    `torch.manual_seed` also notes its caller for each kind of device that may yet come up, for most of a millisecond.
    """
    if device.type == "cpu":
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)


def generator(*parts: int | str) -> torch.Generator:
    """A CPU generator seeded with `derive_seed(*parts)`."""
    return torch.Generator().manual_seed(derive_seed(*parts))

"""The methods by name, in order of publication. Command line, documentation and tests all read this table."""

from candapt.methods.base import Method
from candapt.methods.can import CAN
from candapt.methods.source_only import SourceOnly

METHODS: dict[str, type[Method]] = {
    "source-only": SourceOnly,
    "can": CAN,
}

__all__ = ["METHODS", "Method"]

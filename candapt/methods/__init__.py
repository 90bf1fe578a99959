"""The methods by name, in order of publication. Help, benchmark, tuning, report and tests all read this table.

To add one from outside the package: `METHODS["my-method"] = MyMethod`.
"""

from candapt.methods.adr import ADR
from candapt.methods.base import Method
from candapt.methods.can import CAN
from candapt.methods.can_ablations import IntraOnly, NoAlternation, NoClassSampling, PseudoAlternating, PseudoFixed
from candapt.methods.dan import DAN
from candapt.methods.dann import DANN
from candapt.methods.jan import JAN
from candapt.methods.mada import MADA
from candapt.methods.mcc import MCC
from candapt.methods.mcd import MCD
from candapt.methods.self_ensembling import SelfEnsembling
from candapt.methods.source_only import SourceOnly

METHODS: dict[str, type[Method]] = {
    "source-only": SourceOnly,
    "dann": DANN,
    "dan": DAN,
    "jan": JAN,
    "mada": MADA,
    "self-ensembling": SelfEnsembling,
    "adr": ADR,
    "mcd": MCD,
    "can": CAN,
    "can-intra": IntraOnly,
    "can-no-ao": NoAlternation,
    "can-no-cas": NoClassSampling,
    "pseudo-fixed": PseudoFixed,
    "pseudo-alternating": PseudoAlternating,
    "mcc": MCC,
}

__all__ = ["METHODS", "Method"]

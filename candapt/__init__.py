"""candapt: move a classifier to a new domain that has no labels."""

from candapt.data.domains import Domain, LabeledDomain
from candapt.estimator import DomainAdaptationClassifier
from candapt.methods import METHODS
from candapt.model import Model, load

__all__ = ["METHODS", "Domain", "DomainAdaptationClassifier", "LabeledDomain", "Model", "load"]

"""candapt: move a classifier to a new domain that has no labels."""

import os

# Threads that wait for each other by spinning make two trainings on the same cores fifteen times slower, and a single
# one no faster. This must be said before torch is imported; whoever sets the variable is heard.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from candapt.data.domains import Domain, LabeledDomain
from candapt.estimator import DomainAdaptationClassifier
from candapt.methods import METHODS
from candapt.model import Model, load

__all__ = ["METHODS", "Domain", "DomainAdaptationClassifier", "LabeledDomain", "Model", "load"]

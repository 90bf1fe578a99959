"""Losses as pure functions of tensors: the discrepancy of CAN and what the methods it is compared with minimize."""

from candapt.losses.adversarial import classwise_domain_confusion, domain_confusion, reverse_gradient
from candapt.losses.cdd import classwise_mmd, contrastive_domain_discrepancy, shared_classes
from candapt.losses.kernels import Mixture, gaussian_mixture, squared_distances
from candapt.losses.mmd import JAN_MIXTURES, joint_maximum_mean_discrepancy, maximum_mean_discrepancy
from candapt.losses.predictions import (
    absolute_disagreement,
    class_balance,
    confidence_mask,
    consistency_balance,
    masked_consistency,
    minimum_class_confusion,
    symmetric_divergence,
)

__all__ = [
    "JAN_MIXTURES",
    "Mixture",
    "absolute_disagreement",
    "class_balance",
    "classwise_domain_confusion",
    "classwise_mmd",
    "confidence_mask",
    "consistency_balance",
    "contrastive_domain_discrepancy",
    "domain_confusion",
    "gaussian_mixture",
    "joint_maximum_mean_discrepancy",
    "masked_consistency",
    "maximum_mean_discrepancy",
    "minimum_class_confusion",
    "reverse_gradient",
    "shared_classes",
    "squared_distances",
    "symmetric_divergence",
]

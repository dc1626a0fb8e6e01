"""The heart: a mechanism describes what a step releases, an accountant judges it. No torch, no state."""

from edp_lab.privacy.accountants import (
    Accountant,
    GaussianDP,
    ReshufflingZCDP,
    SamplingZCDP,
    gdp_delta,
    gdp_epsilon,
    zcdp_epsilon,
)
from edp_lab.privacy.guarantee import (
    Claim,
    Guarantee,
    accountant_for,
    claim,
    claimed_accountant,
    claimed_epsilon,
    judge,
    true_epsilon,
)
from edp_lab.privacy.loss_distribution import PrivacyLossDistribution
from edp_lab.privacy.mechanism import Adjacency, Alpha, Decay, Mechanism, NoGuarantee, Schedule, Variant

__all__ = [
    "Accountant",
    "Adjacency",
    "Alpha",
    "Claim",
    "Decay",
    "GaussianDP",
    "Guarantee",
    "Mechanism",
    "NoGuarantee",
    "PrivacyLossDistribution",
    "ReshufflingZCDP",
    "SamplingZCDP",
    "Schedule",
    "Variant",
    "accountant_for",
    "claim",
    "claimed_accountant",
    "claimed_epsilon",
    "gdp_delta",
    "gdp_epsilon",
    "judge",
    "true_epsilon",
    "zcdp_epsilon",
]

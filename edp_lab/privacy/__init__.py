"""The heart: a mechanism describes what a step releases, an accountant judges it. No torch, no state."""

from edp_lab.privacy.accounting import (
    Guarantee,
    claimed_epsilon,
    gdp_delta,
    gdp_epsilon,
    gdp_mu,
    judge,
    true_epsilon,
    zcdp_epsilon,
    zcdp_rho,
)
from edp_lab.privacy.mechanism import Adjacency, Alpha, Decay, Mechanism, NoGuarantee, Variant

__all__ = [
    "Adjacency",
    "Alpha",
    "Decay",
    "Guarantee",
    "Mechanism",
    "NoGuarantee",
    "Variant",
    "claimed_epsilon",
    "gdp_delta",
    "gdp_epsilon",
    "gdp_mu",
    "judge",
    "true_epsilon",
    "zcdp_epsilon",
    "zcdp_rho",
]

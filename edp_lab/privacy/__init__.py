"""Privacy accounting: a mechanism describes the releases of a step, and an accountant bounds their epsilon."""

from edp_lab.privacy.gdp import Accountant, GaussianDP, gdp_delta, gdp_epsilon
from edp_lab.privacy.guarantee import Guarantee, accountant_for, guaranteed_epsilon, judge
from edp_lab.privacy.mechanism import Adjacency, Alpha, Decay, Mechanism, NoGuarantee, Variant
from edp_lab.privacy.pld import PrivacyLossDistribution
from edp_lab.privacy.schedule import Schedule, releases_by_epoch, schedule_of
from edp_lab.privacy.zcdp import Claim, ReshufflingZCDP, claim, claimed_accountant, claimed_epsilon, zcdp_epsilon

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
    "Schedule",
    "Variant",
    "accountant_for",
    "claim",
    "claimed_accountant",
    "claimed_epsilon",
    "gdp_delta",
    "gdp_epsilon",
    "guaranteed_epsilon",
    "judge",
    "releases_by_epoch",
    "schedule_of",
    "zcdp_epsilon",
]

"""Solutions of the exercises in 06_audit.ipynb, each from its line ``# EXERCISE name`` to the next."""

# For the teacher: Start with the step panel on *sound* and let the class say what the histograms show before the
# word epsilon falls; then switch to *as printed*. Common confusions: the lower bound is no estimate of ε; “95 %
# confidence” is about audits, not about this ε; 97 of 100 right guesses are not “ε = ln(97/3) = 3.5”, for that has
# no confidence in it.


# EXERCISE at_least
def measured_epsilon(fpr, fnr, delta):
    """Upper limits of both rates -> the lower bound on epsilon, for any mechanism."""
    odds = max((1 - fnr - delta) / fpr, (1 - fpr - delta) / fnr)
    return math.log(max(1, odds))


# EXERCISE honest
def upper_limit(wrong):
    """Of the probability of a wrong guess, too low in 2.5 % of audits at most; wrong: (n) bool."""
    errors, draws = np.sum(wrong), len(wrong)
    return beta.ppf(0.975, errors + 1, draws - errors) if errors < draws else 1.0


def least_mu(absent, present, threshold):
    """The μ that these draws show, if others chose the threshold."""
    fpr, fnr = upper_limit(absent > threshold), upper_limit(present <= threshold)
    return max(0.0, norm.isf(fpr) - norm.ppf(fnr))


def epsilon_of(mu, delta):
    """The ε of two bell curves that are μ apart."""
    low, high = 0.0, 200.0 if mu > 0 else 0.0
    while high - low > 1e-9:
        e = (low + high) / 2
        if norm.cdf(mu / 2 - e / mu) - np.exp(e + norm.logcdf(-mu / 2 - e / mu)) > delta:
            low = e
        else:
            high = e
    return low


def honest(absent, present, delta):
    """Outputs as above -> (threshold, ε); the ε is too large in 5 of 100 audits at most."""
    choosing, counted = ((absent[start::2], present[start::2]) for start in (0, 1))
    threshold = max(np.concatenate(choosing), key=lambda t: least_mu(*choosing, t))
    return threshold, epsilon_of(least_mu(*counted, threshold), delta)


# EXERCISE verdicts
prediction = {
    "as printed, N = 8, z0 = 1, 100 draws": "refuted",
    "as printed, N = 1, z0 = 1, 10,000 draws": "refuted",
    "as printed, N = 8, z0 = 0.3, 10 draws": "no power",
    "sound, N = 8, z0 = 1, 10,000 draws": "consistent",
}

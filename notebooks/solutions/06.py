"""Solutions to the exercises of 06_audit.ipynb; each begins at a line ``# EXERCISE name``."""


# EXERCISE at_least
def measured_epsilon(fpr, fnr, delta):
    """Lower bound on epsilon for any mechanism, from upper limits on both rates."""
    odds = max((1 - fnr - delta) / fpr, (1 - fpr - delta) / fnr)
    return math.log(max(1, odds))


# EXERCISE honest
def upper_limit(wrong):
    """Upper limit on the probability of a wrong guess, too low in at most 2.5 % of audits; wrong: (n) bool."""
    errors, draws = np.sum(wrong), len(wrong)
    return beta.ppf(0.975, errors + 1, draws - errors) if errors < draws else 1.0


def least_mu(absent, present, threshold):
    """Lower bound on μ from these draws, if other draws chose the threshold."""
    fpr, fnr = upper_limit(absent > threshold), upper_limit(present <= threshold)
    return max(0.0, norm.isf(fpr) - norm.ppf(fnr))


def epsilon_of(mu, delta):
    """ε of two bell curves with unit variance and means μ apart."""
    low, high = 0.0, 200.0 if mu > 0 else 0.0
    while high - low > 1e-9:
        e = (low + high) / 2
        if norm.cdf(mu / 2 - e / mu) - np.exp(e + norm.logcdf(-mu / 2 - e / mu)) > delta:
            low = e
        else:
            high = e
    return low


def honest(absent, present, delta):
    """Return the threshold and an ε that is too large in at most 5 of 100 audits."""
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

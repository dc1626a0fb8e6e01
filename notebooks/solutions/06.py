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
def honest(absent, present, delta):
    """As above, but it shows too much in 5 of 100 audits at most."""
    limits = [error_rate(wrong, 0.95).upper_limit for wrong in (absent > 0, present <= 0)]
    return lower_bounds(limits[0], limits[1], delta).gaussian


# EXERCISE verdicts
prediction = {
    "as printed, N = 8, z0 = 1, 100 draws": "refuted",
    "as printed, N = 1, z0 = 1, 10,000 draws": "refuted",
    "as printed, N = 8, z0 = 0.3, 10 draws": "no power",
    "sound, N = 8, z0 = 1, 10,000 draws": "consistent",
}

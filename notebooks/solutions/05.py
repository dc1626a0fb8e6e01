"""Solutions of the exercises in 05_membership_inference.ipynb, each from its line ``# EXERCISE name`` to the next."""


# EXERCISE tpr
def chance(h, m, p):
    """Return the probability that h or more of m members are found, if each is found with probability p."""
    found, log_factorial = np.arange(h, m + 1), np.cumsum(np.log(np.maximum(1, np.arange(m + 1))))
    log_ways = log_factorial[m] - log_factorial[found] - log_factorial[m - found]
    return np.sum(np.exp(log_ways + found * np.log(p) + (m - found) * np.log(1 - p)))


def probability_at(wanted, h, m):
    """Return the p at which `chance`, which increases with p, equals `wanted`."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if chance(h, m, middle) < wanted:
            low = middle
        else:
            high = middle
    return low


def tpr_at(members, non_members, fpr):
    """From both sides' scores, return the TPR at this FPR, and the lower and upper end of its interval."""
    allowed = math.floor(fpr * len(non_members) + 1e-9)
    threshold = np.sort(non_members)[::-1][allowed]
    h, m = np.sum(members > threshold), len(members)
    lower = probability_at(0.025, h, m) if h > 0 else 0.0
    upper = probability_at(0.975, h + 1, m) if h < m else 1.0  # h or fewer hits means not h + 1 or more
    return h / m, lower, upper


# EXERCISE compare
prediction = {"AUC": "blunt", "largest TPR - FPR": "blunt", "TPR at 1 % FPR": "sharp"}


# EXERCISE advantage
def advantage(scores, member, texts):
    alone = ~np.isin(texts, np.intersect1d(texts[member], texts[~member]))
    scores, member = scores[alone], member[alone]
    half = np.arange(len(scores)) % 2 == 0

    def gap(these, t):
        return np.mean(scores[these & member] >= t) - np.mean(scores[these & ~member] >= t)

    return gap(~half, max(scores[half], key=lambda t: gap(half, t)))

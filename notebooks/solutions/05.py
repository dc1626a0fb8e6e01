"""Solutions of the exercises in 05_membership_inference.ipynb, each from its line ``# EXERCISE name`` to the next."""

# For the teacher: Let the class vote on what ε = 3.14 allows before the second curve is shown. Dwell on the first
# with the loss attack and *called members* at 1: the point sits near the diagonal while the AUC reads 0.79.
# Common confusions: FPR is a share of the *strangers*, not of those called members; a curve below a line proves
# nothing; the lines belong to a mechanism that this target was *not* trained with.


# EXERCISE tpr
def tpr_at(members, non_members, fpr):
    """Scores of both sides -> share of members found at a share `fpr` of non-members accused."""
    allowed = math.floor(fpr * len(non_members) + 1e-9)
    limit = np.sort(non_members)[::-1][allowed]
    return np.mean(members > limit)


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

"""Solutions of the exercises in 00_start.ipynb, each from its line ``# EXERCISE name`` to the next."""


# EXERCISE clip
def clip(gradient, C):
    """Scale the gradient (a NumPy array) down to a norm of at most C."""
    length = (gradient**2).sum() ** 0.5
    return gradient * min(1, C / length)


# EXERCISE refuted
fewest = 2

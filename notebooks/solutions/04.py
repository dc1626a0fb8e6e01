"""Solutions of the exercises in 04_edp_sgd.ipynb, each from its line ``# EXERCISE name`` to the next."""


# EXERCISE noise
def noise_std(C, z, N):
    """Return the standard deviation of the noise on each coordinate of the released mean."""
    return C * z / N**1.5


# EXERCISE devices
prediction = {"claimed ε": "stays", "ε if α were public": "rises"}


# EXERCISE accountant
def multiplier(z, N, alpha):
    """Return noise divided by sensitivity; `alpha` lists the layer scales; micro-batches have several sentences."""
    return z / (2 * math.sqrt(N) * max(alpha))

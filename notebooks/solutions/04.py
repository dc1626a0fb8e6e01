"""Solutions of the exercises in 04_edp_sgd.ipynb, each from its line ``# EXERCISE name`` to the next."""


# EXERCISE noise
def noise_std(C, z, N):
    """Standard deviation of the noise on each number that Algorithm 1 returns."""
    return C * z / N**1.5


# EXERCISE devices
prediction = {"claimed ε": "stays", "ε if α were public": "rises"}


# EXERCISE accountant
def multiplier(z, N, alpha):
    """Noise divided by sensitivity; alpha: a list of layer scales; micro-batches have several sentences."""
    return z / (2 * math.sqrt(N) * max(alpha))

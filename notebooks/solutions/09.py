"""Solutions to the exercises of 09_many_gpus.ipynb; each begins at a line ``# EXERCISE name``."""


# EXERCISE aggregate
def mean_deviation(stds):
    """Standard deviation of the noise on the mean; `stds` is an array with one value per device."""
    return np.sqrt(np.sum(stds**2)) / len(stds)


# EXERCISE ranks
def rank_noise(key, step, rank, ranks, size, std):
    """Noise of one rank, determined by key, step and rank, and independent for any other combination."""
    rng = np.random.default_rng([key, step, rank])
    return rng.normal(0, std / math.sqrt(ranks), size)


# EXERCISE processes
prediction = {  # "rises", "falls" or "stays"
    "numbers drawn by one process": "falls",
    "numbers drawn by all processes": "stays",
    "the released gradient's norm": "stays",
    "the guaranteed ε": "stays",
}

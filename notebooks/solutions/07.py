"""Solutions to the exercises of 07_train_privately.ipynb; each begins at a line ``# EXERCISE name``."""

# EXERCISE smaller
prediction = {  # "A" or "B"
    "A: eDP-SGD sound, z0 = 0.03, no decay; B: as printed, z0 = 0.03, exponential decay": "A",
    "A: eDP-SGD sound, z0 = 0.03, no decay; B: DP-SGD, z0 = 0.3, linear decay": "B",
    "A: DP-SGD, disjoint batches, z0 = 0.1; B: DP-SGD, Poisson sampling, z0 = 0.1": "A",
}


# EXERCISE noise
def noise_on_mean(z, clip_norm, micro_batch, batch):
    """Standard deviation of the noise per weight; `batch` is a multiple of `micro_batch`."""
    sensitivity = clip_norm if micro_batch == 1 else 2 * clip_norm
    return z * sensitivity / (batch / micro_batch)


# EXERCISE report
def report(trials, delta):
    """The error of the best of several private runs, and the ε of all trials."""
    best = min(trials, key=lambda trial: trial["validation_ser"])
    mu = sum(trial["mu"] ** 2 for trial in trials) ** 0.5
    return best["test_ser"], gdp_epsilon(mu, delta)

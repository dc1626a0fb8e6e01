"""Solutions of the exercises in 03_what_does_it_cost.ipynb, each from its line ``# EXERCISE name`` to the next."""


# EXERCISE noise
def total_mu(z):
    """Return the μ of a run; z is an array with the noise multiplier of each epoch."""
    return np.sqrt(np.sum(1 / z**2))


def delta_of(epsilon, mu):
    """Return the δ of Gaussian noise at this ε."""
    return norm.cdf(mu / 2 - epsilon / mu) - np.exp(epsilon + norm.logcdf(-mu / 2 - epsilon / mu))


def noise_for(target, decay, delta):
    """Return z0 by zCDP and z0 by Gaussian DP; `decay` is an array of all d_t, shape (T,)."""
    log = math.log(1 / delta)
    rho = (math.sqrt(log + target) - math.sqrt(log)) ** 2  # solves ρ + 2 √(ρ log) = target
    claimed = np.sqrt(np.sum(1 / decay**2) / (2 * rho))
    low, high = 0.0, claimed  # the zCDP bound needs more noise
    for _ in range(60):
        z0 = (low + high) / 2
        mu = total_mu(z0 * decay)
        if delta_of(target, mu) > delta:
            low = z0
        else:
            high = z0
    return claimed, high


# EXERCISE bill
def epsilon(noise, clip_norm, epochs, batch_size, utterances, delta):
    """Return the ε of a run for one utterance: shuffled batches; means of eight utterances are clipped."""
    z = noise / (2 * clip_norm)  # noise divided by the sensitivity
    schedule = Schedule(z, epochs)  # each utterance takes part in exactly one step per epoch
    return GaussianDP(schedule).epsilon(delta)

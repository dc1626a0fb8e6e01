"""Solutions of the exercises in 03_what_does_it_cost.ipynb, each from its line ``# EXERCISE name`` to the next."""


# EXERCISE noise
def total_mu(z):
    """μ of a run; z is an array, noise divided by sensitivity in each of its epochs."""
    return np.sqrt(np.sum(1 / z**2))


def delta_of(epsilon, mu):
    """The δ that goes with an ε under Gaussian noise."""
    return norm.cdf(mu / 2 - epsilon / mu) - np.exp(epsilon + norm.logcdf(-mu / 2 - epsilon / mu))


def noise_for(target, decay, delta):
    """decay: (T) array of all d_t -> z0 by zCDP, z0 by Gaussian DP."""
    log = math.log(1 / delta)
    rho = (math.sqrt(log + target) - math.sqrt(log)) ** 2  # solves ρ + 2 √(ρ log) = target
    claimed = np.sqrt(np.sum(1 / decay**2) / (2 * rho))
    low, high = 0.0, claimed  # a bound asks for more noise
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
    """Cost of a run for one utterance: shuffled batches; eight utterances share a clip."""
    z = noise / (2 * clip_norm)  # noise over what one utterance can move
    schedule = Schedule(z, epochs)  # it takes part once in each epoch, for sure
    return GaussianDP(schedule).epsilon(delta)

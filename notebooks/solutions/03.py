"""Solutions of the exercises in 03_what_does_it_cost.ipynb, each from its line ``# EXERCISE name`` to the next."""


# EXERCISE compose
def total_mu(z):
    """μ of a run; z is an array, noise over sensitivity in each of its epochs."""
    return np.sqrt(np.sum(1 / z**2))


# EXERCISE bill
def epsilon(noise, clip_norm, epochs, batch_size, utterances, delta):
    """Cost of a run for one utterance: shuffled batches; eight utterances share a clip."""
    z = noise / (2 * clip_norm)  # noise over what one utterance can move
    schedule = Schedule(z, epochs)  # it takes part once in each epoch, for sure
    return GaussianDP(schedule).epsilon(delta)

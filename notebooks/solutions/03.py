"""Solutions of the exercises in 03_what_does_it_cost.ipynb, each from its line ``# EXERCISE name`` to the next."""


# EXERCISE compose
def total_mu(z):
    """μ of a run; z is an array, noise over sensitivity in each of its epochs."""
    return np.sqrt(np.sum(1 / z**2))


# EXERCISE decay
prediction = {  # "rises", "falls" or "stays"
    "the noise of the first epoch": "stays",
    "the ε that the paper claims": "rises",
    "the ε that holds": "rises",
    "the z0 that meets ε = 8": "rises",
}


# EXERCISE bill
def epsilon(z0, num_devices, epochs, batch_size, utterances, delta):
    """What a run of Algorithm 1 as printed costs one utterance: shuffled batches, no decay, α public."""
    z = z0 / (2 * math.sqrt(num_devices))  # noise over what one utterance can move
    schedule = Schedule(z, epochs)  # it takes part once in each epoch, for sure
    return GaussianDP(schedule).epsilon(delta)

"""Solutions of the exercises in 01_coins_to_composition.ipynb, each from its line ``# EXERCISE name`` to the next."""


# EXERCISE estimate
def estimate(responses, epsilon):
    """Estimate the share of true answers that are yes, without bias; `responses` is an array of 0s and 1s."""
    p = math.exp(epsilon) / (math.exp(epsilon) + 1)
    return (np.mean(responses) - (1 - p)) / (2 * p - 1)


# EXERCISE delta
prediction = {  # "rises", "falls" or "stays"
    "σ doubles": "falls",
    "Δ and σ both double": "stays",
    "twice as many people": "stays",
    "ε is halved": "rises",
}


# EXERCISE total
def total(epsilon, releases, delta):
    plain = releases * epsilon  # every release adds its ε
    root = math.sqrt(2 * releases * math.log(1 / delta))
    advanced = epsilon * root + releases * epsilon * (math.exp(epsilon) - 1)
    return min(plain, advanced)

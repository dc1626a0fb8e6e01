"""Solutions of the exercises in 10_three_phases.ipynb, each from its line ``# EXERCISE name`` to the next."""


# EXERCISE gnmax
def gnmax(counts, sigma, rng):
    """The label that wins under noise; counts is an array (labels), rng a numpy generator."""
    return (counts + rng.normal(0, sigma, len(counts))).argmax()


# EXERCISE parts
prediction = {  # "rises", "falls" or "stays"
    "a tenth of the images, batches as before": "rises",
    "a tenth of the images, batches of a tenth": "stays",
    "all ten instructors together, not one of them alone": "stays",
}


# EXERCISE budget
def budget(total, labels):
    """The scale of the Laplace noise on each count."""
    each = total / labels  # every label costs
    moved = 2  # a vote that leaves one count arrives at another
    return moved / each

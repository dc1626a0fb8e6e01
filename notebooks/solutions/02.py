"""Solutions of the exercises in 02_dp_sgd.ipynb, each from its line ``# EXERCISE name`` to the next."""


# EXERCISE clip
def clipped_gradients(weights, features, labels, C):
    """Return one gradient per person, clipped to norm C, in a tensor of shape (B, 2); B may be 0."""
    errors = torch.sigmoid(features @ weights) - labels
    gradients = errors[:, None] * features
    lengths = gradients.norm(dim=1, keepdim=True)
    return gradients * (C / lengths.clamp(min=1e-12)).clamp(max=1)


# EXERCISE sample
def poisson_batch(n, q, rng):
    """Return the indices of the people who take part, each with probability q, independently."""
    return np.flatnonzero(rng.random(n) < q)


# EXERCISE step
def private_step(weights, clipped, C, z, B, lr, noise):
    """Return the weights after a step; `clipped` has any number of rows, and `noise` is standard normal, shape (2,)."""
    noisy = clipped.sum(0) + z * C * noise
    return weights - lr * noisy / B


# EXERCISE loop
def account(z, q, steps, delta):
    """Return the ε of `steps` Poisson steps: the smallest over the orders 2 to 32."""
    best = math.inf
    for order in range(2, 33):
        moment, largest = 0.0, order * (order - 1) / (2 * z**2)  # factored out: its exponential may overflow
        for j in range(order + 1):
            drawn = math.comb(order, j) * (1 - q) ** (order - j) * q**j
            moment += drawn * math.exp(j * (j - 1) / (2 * z**2) - largest)
        exponent = (steps * (largest + math.log(moment)) - math.log(order * delta)) / (order - 1)
        best = min(best, math.log(1 - 1 / order) + exponent)
    return best


def train(features, labels, weights, C, z, B, lr, steps, delta, rng):
    """Train with DP-SGD; return the weights and ε. Each step calls poisson_batch, then rng.standard_normal(2)."""
    q = B / len(features)
    for _ in range(steps):
        batch = poisson_batch(len(features), q, rng)
        clipped = clipped_gradients(weights, features[batch], labels[batch], C)
        noise = torch.from_numpy(rng.standard_normal(2))
        weights = private_step(weights, clipped, C, z, B, lr, noise)
    return weights, account(z, q, steps, delta)

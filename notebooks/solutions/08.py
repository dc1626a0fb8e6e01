"""Solutions to the exercises of 08_data_and_models.ipynb; each begins at a line ``# EXERCISE name``."""


# EXERCISE ser
def ser(references, predictions):
    """Semantic error rate over all utterances."""
    errors = items = 0
    for (intent, slots), (said, found) in zip(references, predictions, strict=True):
        errors += (intent != said) + edit_distance(slots, found)
        items += 1 + len(slots)
    return errors / items


# EXERCISE majority
prediction = "above 0.7"


# EXERCISE pool
def pool(tokens, lengths):
    """Maximum over the words of each utterance, shape (B, D)."""
    padded, mask = to_padded(tokens, lengths)
    return padded.masked_fill(~mask[..., None], -torch.inf).amax(1)

"""The thesis: noised inputs, instructors that vote, an understudy that learns from the votes."""

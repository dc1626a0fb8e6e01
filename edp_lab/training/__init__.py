"""One training loop, the eDP-SGD step, and the files of a run."""

"""``python -m edp_lab`` is the same as ``edp-lab``."""

from edp_lab.cli import main

main()

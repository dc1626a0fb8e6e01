"""What pyproject.toml cannot say: a wheel carries data and notebooks inside the package, see edp_lab/files.py."""

from setuptools import find_namespace_packages, setup

CARRIED = {f"edp_lab._carried.{folder}": folder for folder in ("data", "notebooks")}

setup(packages=[*find_namespace_packages(include=["edp_lab*"]), *CARRIED], package_dir=CARRIED)

"""Builds the distribution of the suite: the package is the folder of this file."""

from setuptools import find_packages, setup

PACKAGES = ["compat_tests", *(f"compat_tests.{name}" for name in find_packages("."))]

setup(packages=PACKAGES, package_dir={"compat_tests": "."})

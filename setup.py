"""Builds the distribution; what it needs to know stands in setup.cfg.

A package index shows README by itself, so there its links lead to the repository.
"""

import configparser
import pathlib
import re

from setuptools import setup

HERE = pathlib.Path(__file__).resolve().parent
LINK = re.compile(r"\]\((?!https?://|#)([^)\s]+)\)")


def readme():
    """Returns README with links that work outside of the repository."""
    config = configparser.ConfigParser()
    config.read(HERE / "setup.cfg", encoding="utf-8")
    metadata = config["metadata"]
    urls = dict(line.split(" = ", 1) for line in metadata["project_urls"].strip().splitlines())
    pages = f"{urls['Source']}/blob/v{metadata['version']}"
    return LINK.sub(rf"]({pages}/\1)", (HERE / "README.md").read_text(encoding="utf-8"))


setup(long_description=readme(), long_description_content_type="text/markdown")

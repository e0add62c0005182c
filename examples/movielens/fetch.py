"""Puts MovieLens 100K where `train.py` can read it.

The three files come out of a published Python package that carries them, `recbole`, so
that pip, with whatever index and proxy it is set up for, is the only thing that needs to
reach a network. The ratings are GroupLens' and have terms of use of their own
(https://files.grouplens.org/datasets/movielens/ml-100k-README.txt): they are read from
here and never become part of this repository.

    python examples/movielens/fetch.py [--data_dir DIR]
"""

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile
import zipfile

REQUIREMENT = "recbole==1.2.1"
FOLDER = "recbole/dataset_example/ml-100k"
FILES = ("ml-100k.inter", "ml-100k.item", "ml-100k.user")


class FetchError(Exception):
    """The data could not be had; the message says what else to try."""


def default_data_dir(environ=os.environ):
    """Returns the folder that is used when no `--data_dir` is given."""
    cache = environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(cache) / "estimator-bridge" / "movielens"


def is_present(data_dir):
    """Whether all the files are there already."""
    return all((data_dir / name).is_file() for name in FILES)


def fetch(data_dir):
    """Downloads the package and leaves its three files in `data_dir`.

    Raises:
        FetchError: pip could not download the package, or a file is not in it.
    """
    data_dir.mkdir(parents=True, exist_ok=True)
    # Inside data_dir, because a rename is atomic only within one file system.
    with tempfile.TemporaryDirectory(dir=data_dir, prefix=".fetch-") as scratch:
        scratch = pathlib.Path(scratch)
        wheel = download(scratch)
        try:
            with zipfile.ZipFile(wheel) as archive:
                for name in FILES:
                    (scratch / name).write_bytes(archive.read(f"{FOLDER}/{name}"))
        except (KeyError, zipfile.BadZipFile) as error:
            raise FetchError(f"{wheel.name} is not the package expected: {error}.") from error
        for name in FILES:
            os.replace(scratch / name, data_dir / name)


def download(folder):
    """Has pip put the wheel into `folder`; returns its path."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--only-binary=:all:",
        "--dest",
        str(folder),
        REQUIREMENT,
    ]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or not wheels:
        raise FetchError(f"`{' '.join(command)}` failed:\n{done.stdout.strip()}")
    return wheels[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--data_dir",
        type=pathlib.Path,
        default=default_data_dir(),
        help="where the files go (default: %(default)s)",
    )
    data_dir = parser.parse_args().data_dir

    if is_present(data_dir):
        print(f"{data_dir}: {', '.join(FILES)} are there already.")
        return
    try:
        fetch(data_dir)
    except FetchError as error:
        sys.exit(
            f"{error}\n\nIf you have a copy of {', '.join(FILES)} (tab separated, with a "
            f"header line of name:type), give its folder to train.py as --data_dir."
        )
    print(f"{data_dir}: fetched {', '.join(FILES)}.")


if __name__ == "__main__":
    main()

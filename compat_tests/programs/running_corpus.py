"""Migrates programs of the corpus to a form and runs them, one after the other in this process.

python -m compat_tests.programs.running_corpus FORM FOLDER NAMES...

It prints a line of JSON for each: its name, and the error or null.
"""

from __future__ import annotations

import json
import pathlib
import runpy
import sys
import traceback

from compat_tests.support import migrate_corpus
from estimator_bridge import install
from estimator_bridge.migrate import packages
from estimator_bridge.migrate.forms import FORMS


def main() -> None:
    form, folder, *names = sys.argv[1:]
    if form == "bridge":
        import tensorflow.compat.v1 as tf

        tf.disable_v2_behavior()
    if form == "keras":
        install.use_legacy_keras()  # A TrainerModel with layers needs it.
    programs = migrate_corpus.programs()
    for name in names:
        path = pathlib.Path(folder) / f"{name}_{form}.py"
        path.write_text(packages.rewrite_text(FORMS[form], programs[name].source, name).source)
        sys.argv = [str(path), str(pathlib.Path(folder) / f"{name}_{form}")]
        error = None
        try:
            runpy.run_path(str(path), run_name="__main__")
        except Exception:
            error = traceback.format_exc()[-3000:]
        print(json.dumps([name, error]), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()

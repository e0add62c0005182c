"""Records stock's device configuration of every case: `python -m` this on TensorFlow 2.15.1."""

from __future__ import annotations

import json
import pathlib

import tensorflow as tf
from google.protobuf import text_format

from compat_tests.cases.config_protos import CASES
from compat_tests.cases.legacy import Case
from compat_tests.support import legacy_specs, stock
from compat_tests.support.protos import in_order_of_use

PATH = pathlib.Path(__file__).with_name("config_protos.json")


def record(case: Case) -> str:
    """Returns stock's proto as one line of text, its dynamic rates numbered by first use.

    Stock numbers them in the order of a set, which differs from process to process.
    """
    embedding = stock.embedding(
        legacy_specs.build(case, stock.CLASSES),
        training=case.training,
        batch_size=case.batch_size,
        num_hosts=case.num_hosts,
        num_cores=case.num_cores,
    )
    return text_format.MessageToString(in_order_of_use(embedding.config_proto), as_one_line=True)


def main() -> None:
    goldens = {"tensorflow": tf.__version__, "cases": {case.name: record(case) for case in CASES}}
    PATH.write_text(json.dumps(goldens, indent=1) + "\n")


if __name__ == "__main__":
    main()

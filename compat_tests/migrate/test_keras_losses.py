"""`migrate --form keras` refuses a model_fn with several losses; the tf2 form accepts it."""

from __future__ import annotations

import pytest

from compat_tests.support import migrate_corpus
from estimator_bridge.migrate.blockers import Refused
from estimator_bridge.migrate.forms import FORMS
from estimator_bridge.migrate.selection import ALL
from estimator_bridge.migrate.syntax.modules import ALONE

SOURCE = migrate_corpus.programs()["two_optimizers"].source
FIRST = ".minimize(loss, step, var_list=kernels)"


@pytest.mark.parametrize("other", ["2.0 * loss", "loss + tf.reduce_sum(loss)"])
def test_several_losses_are_refused(other: str) -> None:
    """One loss with two optimizers is carried over; two losses are refused."""
    assert FIRST in SOURCE
    FORMS["keras"].rewrite(SOURCE, "job.py", ALL, ALONE)
    changed = SOURCE.replace(FIRST, FIRST.replace("loss", other))
    with pytest.raises(Refused, match=r"the Keras form:\n.*\[keras-no-training\].* several losses"):
        FORMS["keras"].rewrite(changed, "job.py", ALL, ALONE)
    FORMS["tf2"].rewrite(changed, "job.py", ALL, ALONE)

"""Migrates programs, and raises Refused if any place is left to a person."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

from estimator_bridge import migrate as forms
from estimator_bridge.migrate import packages
from estimator_bridge.migrate.blockers import Blocker, Refused
from estimator_bridge.migrate.forms import FORMS
from estimator_bridge.migrate.rewrite_report import Rewritten, left_to_do

_LEFT = re.compile(r".*?, line \d+: ([\w-]+): line (\d+): (?s:(.*))\. (.*?)\.$")


def _whole(rewrite: Callable[..., Rewritten]) -> Callable[..., Rewritten]:
    @functools.wraps(rewrite)
    def whole(source: str, name: str = "the program", *args: Any, **options: Any) -> Rewritten:
        new = rewrite(source, name, *args, **options)
        found = [_LEFT.fullmatch(each) for each in left_to_do({name: new})]
        if found:
            left = [
                Blocker(int(each[2]), each[1], "", each[3], each[4], name) for each in found if each
            ]
            raise Refused(name, left)
        return new

    return whole


migrate = _whole(forms.migrate)
migrate_to_keras = _whole(forms.migrate_to_keras)
"""Creates the model class for a simple model_fn."""


@_whole
def keras_form(source: str, name: str = "the program") -> Rewritten:
    """Returns the program that `migrate --form keras` writes, with a class or a TrainerModel."""
    return packages.rewrite_text(FORMS["keras"], source, name)

"""Reads an estimator's arguments and RunConfig: each is carried over, left out or refused."""

from __future__ import annotations

import ast
from collections.abc import Collection

from estimator_bridge.migrate.keras_form.call_sites.sites import Site, followed
from estimator_bridge.migrate.keras_form.program_text.source import Source, nodes_in

_CARRIED = {"model_dir", "tf_random_seed", "save_checkpoints_steps", "keep_checkpoint_max"}
_LEFT_OUT = {
    "tpu_config": "the strategy says what the TPU does",
    "log_step_count_steps": "fit logs as Keras does",
    "save_summary_steps": "fit(callbacks=[tf.keras.callbacks.TensorBoard(...)]) writes summaries",
    "keep_checkpoint_every_n_hours": "keep_checkpoints takes a number of checkpoints",
    "save_checkpoints_secs": "keep_checkpoints takes a number of steps",
    "session_config": "a Keras model has no sessions",
    "cluster": "",
    "master": "",
}


def check(source: Source, site: Site, known: Collection[str]) -> None:
    for key, value in site.arguments.items():
        if key not in known:
            refuse(source, value, key)
    for key, value in site.config.items():
        if _LEFT_OUT.get(key):
            leave_out(source, value)
            source.notes.append((value.lineno, f"{key} is left out: {_LEFT_OUT[key]}"))
        elif key not in _CARRIED and key not in _LEFT_OUT:
            refuse(source, value, key)


def refuse(source: Source, node: ast.expr, key: str) -> None:
    source.problem(
        *(node, "keras-estimator-argument", f"{key} has no counterpart"),
        f"Do without {key}, or migrate to the tf2 form",
    )


def seed_lines(source: Source, site: Site) -> list[str]:
    seed = site.config.get("tf_random_seed")
    return [] if seed is None else [f"tf.keras.utils.set_random_seed({source.code(seed)})"]


def checkpoints_line(source: Source, site: Site, name: str) -> str:
    folder = model_dir(site)
    parts = [source.code(folder) if folder is not None else "None"]
    options = "save_checkpoints_steps=save_steps keep_checkpoint_max=max_to_keep"
    parts += source.keywords(site.config, options)
    return f"{name}.keep_checkpoints({', '.join(parts)})"


def model_dir(site: Site) -> ast.expr | None:
    return site.arguments.get("model_dir") or site.config.get("model_dir")


def leave_out(source: Source, value: ast.expr) -> None:
    """Drops an argument's value, and assignments to names that only this value uses."""
    source.done.update(ast.walk(value))
    for node in nodes_in(value, ast.Name):
        if len(source.uses(node.id, source.tree)) == 1:
            left_out = followed(source, node, is_used=False)
            source.done.update(ast.walk(left_out) if left_out is not None else ())

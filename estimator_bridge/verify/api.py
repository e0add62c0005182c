"""`estimator_bridge.verify`: both sides of a comparison in this process."""

from __future__ import annotations

import os
import pathlib
import tempfile
from collections.abc import Callable
from typing import Any

from estimator_bridge.verify.procedure import A, B, Order, side_by_side
from estimator_bridge.verify.recorder import Recorder
from estimator_bridge.verify.recording import Recording
from estimator_bridge.verify.result import Result
from estimator_bridge.verify.sides import Side, opened, side_of


def verify(
    model_fn: Callable[..., Any],
    input_fn: Callable[..., Any],
    spec: Any,
    *,
    batch_size: int,
    a: str | Side = "stock",
    b: str | Side = "bridge",
    steps: int = 20,
    use_tpu: bool = True,
    params: Any = None,
    config: Any = None,
    spec_b: Any = None,
    model_fn_b: Callable[..., Any] | None = None,
    eval_input_fn: Callable[..., Any] | None = None,
    predict_input_fn: Callable[..., Any] | None = None,
    serving_input_receiver_fn: Callable[[], Any] | None = None,
    every: int | None = None,
    begin_from: str | None = None,
    own_input: bool = False,
    measure: bool = True,
    examples: str | None = None,
    directory: str | os.PathLike[str] | None = None,
    html: str | os.PathLike[str] | None = None,
) -> Result:
    """Runs a model on two engines from one initial state and on the same batches, and compares.

        result = estimator_bridge.verify(model_fn, input_fn, spec, batch_size=1024)
        assert result.equal, result

    Args:
        model_fn, input_fn: as for a TPUEstimator.
        spec: an EmbeddingConfigSpec.
        batch_size: of the global batch, in every mode.
        a, b: the sides by name (`sides.SIDES`); "stock" is there on TensorFlow 2.15 alone.
        steps: of training.
        use_tpu: where a side does not say.
        config: a tpu.RunConfig; its model_dir is not touched. With stock on a side it is stock's.
        spec_b, model_fn_b: of side B, if it has others, as after a migration.
        eval_input_fn, predict_input_fn, serving_input_receiver_fn: evaluate, predict and export
            after the training, and are compared too. What is exported answers in a process of its
            own.
        every: steps between looks at the variables; None is 1, or 5 with pipelining.
        begin_from, own_input, measure, examples: see `procedure.side_by_side`.
        directory: where recordings go; None is a temporary directory that is removed.
        html: where to write the page, or None.

    Returns:
        What was found; `equal` is the verdict, and `print(result)` a table.

    Raises:
        MissingStock, InvalidInput: there is no such side here.
    """
    sides = {A: side_of(a), B: side_of(b)}

    def _model_fn(order: Order) -> Callable[..., Any]:
        return model_fn_b if order.role == B and model_fn_b is not None else model_fn

    def record(order: Order) -> None:
        side = sides.get(order.role, sides[A])
        recorder = Recorder(
            order.directory,
            side,
            steps=steps,
            every=every,
            begin_from=order.begin_from,
            nudged=order.nudged,
            replayed=None if order.replayed is None else Recording(order.replayed),
            program=getattr(_model_fn(order), "__name__", "model_fn"),
        )
        with opened(side) as kind, recorder.attached(kind):
            job = kind(
                model_fn=_model_fn(order),
                use_tpu=use_tpu,
                config=_config() if config is None else config,
                params={} if params is None else params,
                train_batch_size=batch_size,
                eval_batch_size=batch_size,
                predict_batch_size=batch_size,
                embedding_config_spec=spec_b if order.role == B and spec_b is not None else spec,
            )
            job.train(input_fn, steps=steps)
            if eval_input_fn is not None:
                job.evaluate(eval_input_fn, steps=steps)
            if predict_input_fn is not None:
                for _ in job.predict(predict_input_fn):
                    pass
            if serving_input_receiver_fn is not None:
                job.export_saved_model(order.directory / "exports", serving_input_receiver_fn)

    def _config() -> Any:
        from estimator_bridge.legacy.run_config import RunConfig
        from estimator_bridge.run import software_tpu

        if any(side.stock for side in sides.values()):
            return software_tpu.stock_estimator().tpu.RunConfig()
        return RunConfig()

    with tempfile.TemporaryDirectory() as temporary:
        result = side_by_side(
            record,
            pathlib.Path(directory or temporary),
            begin_from=begin_from,
            own_input=own_input,
            measure=measure,
            examples=examples,
        )
    if html is not None:
        from estimator_bridge.verify.page import page

        pathlib.Path(html).write_text(page(result, result.settings[0]["program"]))
    return result

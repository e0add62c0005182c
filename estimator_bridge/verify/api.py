"""`estimator_bridge.verify`: compares a model on two engines, in this process."""

from __future__ import annotations

import os
import pathlib
import tempfile
from collections.abc import Callable

from estimator_bridge.verify.procedure import ComparisonOptions, side_by_side
from estimator_bridge.verify.record.recording import A, B, RecordingRequest
from estimator_bridge.verify.result import Result
from estimator_bridge.verify.search import SECONDS
from estimator_bridge.verify.sides import Side, opened, side_of
from tf2_engine.types import Function, Object


def verify(
    model_fn: Function,
    input_fn: Function,
    spec: Object,
    *,
    batch_size: int,
    a: str | Side = "stock",
    b: str | Side = "bridge",
    steps: int = 20,
    use_tpu: bool = True,
    params: Object = None,
    config: Object = None,
    spec_b: Object = None,
    model_fn_b: Function | None = None,
    eval_input_fn: Function | None = None,
    predict_input_fn: Function | None = None,
    serving_input_receiver_fn: Callable[[], Object] | None = None,
    every: int | None = None,
    begin_from: str | None = None,
    own_input: bool = False,
    free_run: bool = False,
    measure: bool = True,
    search: float = SECONDS,
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
        params: as for a TPUEstimator.
        config: a tpu.RunConfig; its model_dir is not touched. With stock on a side it is stock's.
        spec_b, model_fn_b: of side B, if it has others, as after a migration.
        eval_input_fn, predict_input_fn, serving_input_receiver_fn: evaluate, predict and export
            after the training, and are compared too. The exported model is loaded in a process of
            its own.
        every: steps between looks at the variables; None is 1, or 5 with pipelining.
        begin_from: a checkpoint; None begins with the initial values of side A.
        own_input: side B reads its own input instead of the batches of side A.
        free_run: side B runs on from its own state; by default it goes on from side A's after every
            compared step, so that each step is judged by itself.
        measure: where numbers differ by more than the rounding of tables explains, side A trains
            once more from a perturbed start, and what that moves is allowed too.
        search: the seconds for which the causes of a difference are searched; what was not tried
            is among the `notes`.
        examples: a TFRecord file of serialised Examples, for exported signatures that take such;
            None makes them of the batches.
        directory: where recordings go; None is a temporary directory that is removed.
        html: where to write the page, or None.

    Returns:
        The findings; `equal` is the verdict, and `print(result)` a table.

    Raises:
        MissingStock, InvalidInput: there is no such side here.
    """
    sides = {A: side_of(a), B: side_of(b)}
    models = {A: (model_fn, spec), B: (model_fn_b or model_fn, spec_b or spec)}
    arguments = {
        "use_tpu": use_tpu,
        "params": {} if params is None else params,
        **dict.fromkeys(("train_batch_size", "eval_batch_size", "predict_batch_size"), batch_size),
    }

    def record(request: RecordingRequest) -> None:
        from estimator_bridge.verify.record.recorder import Recorder

        side = sides[request.side]
        model, spec = models[request.side]
        name = getattr(model, "__name__", "model_fn")
        recorder = Recorder(request, side, steps=steps, every=every, program=name)
        with opened(side) as estimator_class, recorder.attached(estimator_class):
            estimator = estimator_class(
                model_fn=model,
                embedding_config_spec=spec,
                config=config or _run_config(*sides.values()),
                **arguments,
            )
            estimator.train(input_fn, steps=steps)
            if request.sketches:  # of the training alone
                return
            if eval_input_fn is not None:
                estimator.evaluate(eval_input_fn, steps=steps)
            if predict_input_fn is not None:
                list(estimator.predict(predict_input_fn))
            if serving_input_receiver_fn is not None:
                exports = f"{request.directory}/exports"
                estimator.export_saved_model(exports, serving_input_receiver_fn)

    options = ComparisonOptions(begin_from, own_input, measure, examples, free_run, search=search)
    with tempfile.TemporaryDirectory() as temporary:
        result = side_by_side(record, pathlib.Path(directory or temporary), options)
    if html is not None:
        from estimator_bridge.verify.report.page import page

        pathlib.Path(html).write_text(page(result, result.settings[0]["program"]))
    return result


def _run_config(*sides: Side) -> Object:
    """Returns a RunConfig that both sides take."""
    from estimator_bridge.legacy.run_config import RunConfig
    from estimator_bridge.run import software_tpu

    if any(side.stock for side in sides):
        return software_tpu.stock_estimator().tpu.RunConfig()
    return RunConfig()

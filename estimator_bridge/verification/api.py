"""`estimator_bridge.verify`: compares a model on two engines, in this process."""

from __future__ import annotations

import os
import pathlib
import tempfile
from collections.abc import Callable

from estimator_bridge.verification.explain.search import SECONDS
from estimator_bridge.verification.procedure import ComparisonOptions, side_by_side
from estimator_bridge.verification.result import Result
from estimator_bridge.verification.sides import A, B, RecordingRequest, Side, opened, side_of
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
    """Runs a model on two engines with the same initial state and batches; compares the results.

        result = estimator_bridge.verify(model_fn, input_fn, spec, batch_size=1024)
        assert result.equal, result

    Args:
        model_fn, input_fn, params: as for a TPUEstimator.
        spec: an EmbeddingConfigSpec of stock or of the bridge.
        batch_size: the size of the global batch, in every mode.
        a, b: the two sides, each a `Side` or a name in `sides.SIDES`; "stock" needs TensorFlow
            2.15.
        use_tpu: the estimator's `use_tpu` on each side whose `Side.use_tpu` is None.
        config: a tpu.RunConfig (stock's if a side is stock); its model_dir is not used.
        spec_b, model_fn_b: the spec and model_fn of side B, if they differ from side A's.
        eval_input_fn, predict_input_fn, serving_input_receiver_fn: if given, both sides also
            evaluate, predict or export after training, and the results are compared.
        every: variables are compared every `every` steps. None means 1, or 5 with pipelining.
        begin_from: a checkpoint to start from; None starts from side A's initial values.
        own_input: whether side B reads its own input instead of side A's batches.
        free_run: whether side B keeps its own state, instead of taking over side A's after every
            compared step.
        measure: whether side A is trained again, with the last bits of its values changed, if
            the results differ by more than rounding in the tables can explain. Differences of up
            to 8 times the effect of these bits are then allowed.
        search: how many seconds to search for causes. Causes that were not tried are listed in the
            result's `notes`.
        examples: a TFRecord file of Examples, for exported signatures that take Examples.
        directory: where to write recordings; None uses a temporary directory.
        html: where to write the report as an HTML page; None writes no page.

    Raises:
        MissingStock, InvalidInput: one of the sides is not available here.
    """
    sides = {A: side_of(a), B: side_of(b)}
    models = {A: (model_fn, spec), B: (model_fn_b or model_fn, spec_b or spec)}
    arguments = {
        "use_tpu": use_tpu,
        "params": {} if params is None else params,
        **dict.fromkeys(("train_batch_size", "eval_batch_size", "predict_batch_size"), batch_size),
    }

    def record(request: RecordingRequest) -> None:
        from estimator_bridge.verification.record.recorder import Recorder

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
            if request.sketches:  # op sketches need only training
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
        from estimator_bridge.verification.report.page import page

        pathlib.Path(html).write_text(page(result, result.settings[0]["program"]))
    return result


def _run_config(*sides: Side) -> Object:
    from estimator_bridge.legacy.run_config import RunConfig
    from estimator_bridge.run import software_tpu

    if any(side.stock for side in sides):
        return software_tpu.stock_estimator().tpu.RunConfig()
    return RunConfig()

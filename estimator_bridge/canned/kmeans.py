"""`KMeansClustering`, which `tf.compat.v1.estimator.experimental` calls KMeans."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from estimator_bridge.canned.heads.head import DEFAULT
from estimator_bridge.legacy.base_run_config import RunConfig
from estimator_bridge.legacy.estimator_spec import EstimatorSpec
from estimator_bridge.runtime.estimator.base_estimator import Estimator, PathLike
from estimator_bridge.runtime.program_types import Columns, InputFn, RunContext, RunValues
from tf2_engine import log, tf_compat
from tf2_engine.types import Array, Nest, Object, Op, Session, Tensor, Variable

_ops = tf_compat.clustering()


class KMeansClustering(Estimator):
    """Finds clusters of points, without labels.

    Args:
        initial_clusters: `RANDOM_INIT` (points of the first batches), `KMEANS_PLUS_PLUS_INIT`, the
            centers themselves, or a function that takes the points and the number of clusters and
            returns centers.
        distance_metric: `SQUARED_EUCLIDEAN_DISTANCE` or `COSINE_DISTANCE`.
        use_mini_batch: True if a batch is only a part of the data, False if it is all of the data.
        mini_batch_steps_per_iteration: the number of steps between updates of the centers.
        kmeans_plus_plus_num_retries: how many points k-means++ tries for each center.
        relative_tolerance: training stops once |loss - previous loss| / (1 + |previous loss|) is
            less than this; not for mini batches, whose losses belong to different points.
        feature_columns: columns of the points; None means all features in alphabetical order.

    Raises:
        InvalidInput: `distance_metric` or `initial_clusters` is unknown.
    """

    SQUARED_EUCLIDEAN_DISTANCE = _ops.SQUARED_EUCLIDEAN_DISTANCE
    COSINE_DISTANCE = _ops.COSINE_DISTANCE
    RANDOM_INIT = _ops.RANDOM_INIT
    KMEANS_PLUS_PLUS_INIT = _ops.KMEANS_PLUS_PLUS_INIT
    SCORE = "score"
    CLUSTER_INDEX = "cluster_index"
    ALL_DISTANCES = "all_distances"
    CLUSTER_CENTERS_VAR_NAME = _ops.CLUSTERS_VAR_NAME

    def __init__(
        self,
        num_clusters: int,
        model_dir: PathLike | None = None,
        initial_clusters: Object = RANDOM_INIT,
        distance_metric: str = SQUARED_EUCLIDEAN_DISTANCE,
        seed: int | None = None,
        use_mini_batch: bool = True,
        mini_batch_steps_per_iteration: int = 1,
        kmeans_plus_plus_num_retries: int = 2,
        relative_tolerance: float | None = None,
        config: RunConfig | None = None,
        feature_columns: Columns | None = None,
    ) -> None:
        ways = (self.RANDOM_INIT, self.KMEANS_PLUS_PLUS_INIT)
        if isinstance(initial_clusters, str) and initial_clusters not in ways:
            raise errors.InvalidInput(
                f"Unsupported initialization algorithm '{initial_clusters}'. Give one of "
                f"{', '.join(ways)}."
            )
        metrics = (self.SQUARED_EUCLIDEAN_DISTANCE, self.COSINE_DISTANCE)
        if distance_metric not in metrics:
            raise errors.InvalidInput(
                f"Unsupported distance metric '{distance_metric}'. Give one of "
                f"{', '.join(metrics)}."
            )
        self._distance_metric = distance_metric
        settings = {
            "num_clusters": num_clusters,
            "initial_clusters": initial_clusters,
            "distance_metric": distance_metric,
            "use_mini_batch": use_mini_batch,
            "mini_batch_steps_per_iteration": mini_batch_steps_per_iteration,
            "random_seed": seed,
            "kmeans_plus_plus_num_retries": kmeans_plus_plus_num_retries,
        }

        def model_fn(features: Nest, mode: str, config: RunConfig) -> EstimatorSpec:
            points = _points(features, feature_columns)
            return _spec(mode, points, settings, relative_tolerance, config.is_chief)

        super().__init__(model_fn, model_dir, config)

    def predict_cluster_index(self, input_fn: InputFn) -> Iterator[Array]:
        yield from self._predictions(input_fn, self.CLUSTER_INDEX)

    def transform(self, input_fn: InputFn) -> Iterator[Array]:
        """Yields the distances of each point from all centers, [num_clusters]; not squared."""
        for distances in self._predictions(input_fn, self.ALL_DISTANCES):
            is_squared = self._distance_metric == self.SQUARED_EUCLIDEAN_DISTANCE
            yield np.sqrt(distances) if is_squared else distances

    def score(self, input_fn: InputFn) -> float:
        """Returns the sum of the distances between one batch's points and their closest centers.

        Euclidean distances are squared.
        """
        return float(self.evaluate(input_fn, steps=1)[self.SCORE])

    def cluster_centers(self) -> Array:
        """Returns the centers, [num_clusters, dimensions]."""
        return self.get_variable_value(self.CLUSTER_CENTERS_VAR_NAME)

    def _predictions(self, input_fn: InputFn, key: str) -> Iterator[Array]:
        for prediction in self.predict(input_fn, predict_keys=[key]):
            yield prediction[key]


KMeans = KMeansClustering


def _points(features: Nest, columns: Columns | None) -> Tensor:
    if not isinstance(features, dict):
        return features
    if columns:
        return tf.feature_column.input_layer(features, columns)
    return tf.concat([features[key] for key in sorted(features)], axis=1)


def _spec(
    mode: str, points: Tensor, settings: dict[str, Object], tolerance: float | None, is_chief: bool
) -> EstimatorSpec:
    graph = _ops.KMeans(inputs=points, **settings).training_graph()
    distances, indices, losses, is_initialized, initialize, update = graph
    loss = tf.reduce_sum(losses)
    tf.summary.scalar("loss/raw", loss)
    count = tf.assign_add(tf.train.get_global_step(), 1)
    with tf.control_dependencies([update, count]):
        train_op = tf.identity(loss, name="control_dependency")  # stock's name
    hooks: list[tf.train.SessionRunHook] = [_ChooseCenters(initialize, is_initialized, is_chief)]
    if tolerance is not None:
        hooks.append(_StopWhenSteady(loss, tolerance))
    predictions = {
        KMeansClustering.ALL_DISTANCES: distances[0],
        KMeansClustering.CLUSTER_INDEX: indices[0],
    }
    output: Object = tf_compat.export_output_classes()["PredictOutput"]
    outputs = {key: output(value) for key, value in predictions.items()}
    return EstimatorSpec(
        mode,
        predictions,
        loss,
        train_op,
        eval_metric_ops={KMeansClustering.SCORE: tf.metrics.mean(loss)},
        training_hooks=hooks,
        export_outputs={**outputs, DEFAULT: output(indices[0])},
    )


class _ChooseCenters(tf.train.SessionRunHook):
    def __init__(self, initialize: Op, is_initialized: Variable, is_chief: bool) -> None:
        self._initialize, self._is_initialized = initialize, is_initialized
        self._is_chief = is_chief

    def after_create_session(self, session: Session, coord: tf.train.Coordinator) -> None:
        while True:
            try:
                if session.run(self._is_initialized):
                    return
                if self._is_chief:
                    session.run(self._initialize)
                else:
                    time.sleep(1)
            except RuntimeError as error:  # the session is being created again
                log.info("Centers are not chosen yet: %s", error)


class _StopWhenSteady(tf.train.SessionRunHook):
    """Stops once |loss - previous loss| / (1 + |previous loss|) is below a tolerance."""

    def __init__(self, loss: Tensor, tolerance: float) -> None:
        self._loss, self._tolerance = loss, tolerance
        self._before: float | None = None

    def before_run(self, run_context: RunContext) -> tf.train.SessionRunArgs:
        return tf.train.SessionRunArgs(self._loss)

    def after_run(self, run_context: RunContext, run_values: RunValues) -> None:
        loss, before = run_values.results, self._before
        if before and abs(loss - before) / (1 + abs(before)) < self._tolerance:
            run_context.request_stop()
        self._before = loss

"""`RunConfig` and `TPUConfig` accept, refuse and show the same as stock's.

Oracle: stock's own classes, if TensorFlow has them.
"""

from __future__ import annotations

import inspect
import json
import pathlib
import re
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import tensorflow as tf

from compat_tests.support import legacy_specs
from compat_tests.support.legacy_specs import needs_stock
from estimator_bridge import errors, estimator
from estimator_bridge.legacy import base_run_config, run_config

OURS = types.SimpleNamespace(
    BaseRunConfig=base_run_config.RunConfig,
    RunConfig=run_config.RunConfig,
    TPUConfig=run_config.TPUConfig,
    InputPipelineConfig=run_config.InputPipelineConfig,
)


@pytest.fixture
def stock() -> Any:
    from compat_tests.support import stock

    return stock.CLASSES


@pytest.fixture(autouse=True)
def _no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TF_CONFIG", raising=False)


@needs_stock
@pytest.mark.parametrize("name", ["BaseRunConfig", "RunConfig", "TPUConfig"])
def test_arguments_are_those_of_stock(name: str, stock: Any) -> None:
    assert legacy_specs.arguments(getattr(OURS, name)) == legacy_specs.arguments(
        getattr(stock, name)
    )


@needs_stock
def test_input_modes_are_those_of_stock(stock: Any) -> None:
    def constants(kind: type) -> dict[str, Any]:
        return {key: value for key, value in vars(kind).items() if key.isupper()}

    assert constants(OURS.InputPipelineConfig) == constants(stock.InputPipelineConfig)
    assert OURS.TPUConfig._fields == stock.TPUConfig._fields


# --- RunConfig -----------------------------------------------------------------------------

PROPERTIES = sorted(
    name for name, value in inspect.getmembers(run_config.RunConfig) if isinstance(value, property)
)

# How configs are made, from the namespace of classes.
CONFIGS: dict[str, Callable[[Any], Any]] = {
    "defaults": lambda c: c.RunConfig(),
    "base": lambda c: c.BaseRunConfig(model_dir="m", tf_random_seed=3),
    "path": lambda c: c.RunConfig(model_dir=pathlib.Path("m")),
    "steps": lambda c: c.RunConfig(save_checkpoints_steps=7),
    "seconds": lambda c: c.RunConfig(save_checkpoints_secs=7),
    "steps none": lambda c: c.RunConfig(save_checkpoints_steps=None),
    "seconds none": lambda c: c.RunConfig(save_checkpoints_secs=None),
    "never": lambda c: c.RunConfig(save_checkpoints_steps=None, save_checkpoints_secs=None),
    "master": lambda c: c.RunConfig(master="grpc://a"),
    "both masters": lambda c: c.RunConfig(master="grpc://a", evaluation_master=""),
    "evaluation master": lambda c: c.RunConfig(evaluation_master="grpc://b"),
    "tpu": lambda c: c.RunConfig(tpu_config=c.TPUConfig("2m", 8, per_host_input_for_training=3)),
    "per shard": lambda c: c.RunConfig(tpu_config=c.TPUConfig(per_host_input_for_training=False)),
    "replaced": lambda c: c.RunConfig(model_dir="m").replace(model_dir="n", tf_random_seed=1),
    "replaced steps": lambda c: c.RunConfig().replace(save_checkpoints_steps=5),
    "replaced seconds": lambda c: c.RunConfig(save_checkpoints_steps=5).replace(
        save_checkpoints_secs=9
    ),
    "replaced steps by none": lambda c: c.RunConfig().replace(save_checkpoints_steps=None),
    "replaced tpu": lambda c: c.RunConfig().replace(tpu_config=c.TPUConfig(9)),
    "cluster": lambda c: c.RunConfig(cluster=_Resolver()),
}


class _Resolver:
    """What a config asks a cluster resolver."""

    def master(self) -> str:
        return "grpc://resolved"

    def cluster_spec(self) -> Any:
        return tf.train.ClusterSpec({"worker": ["a:1"]})


def _shown(config: Any) -> dict[str, Any]:
    shown = {name: getattr(config, name) for name in PROPERTIES if hasattr(config, name)}
    shown.pop("cluster", None)  # The base class has none.
    shown.pop("experimental_distribute", None)  # Stock keeps it to itself.
    shown["cluster_spec"] = config.cluster_spec.as_dict()
    return shown


@needs_stock
@pytest.mark.parametrize("name", CONFIGS)
def test_properties_are_those_of_stock(name: str, stock: Any) -> None:
    assert _shown(CONFIGS[name](OURS)) == _shown(CONFIGS[name](stock))


@needs_stock
def test_no_property_is_missing(stock: Any) -> None:
    theirs = inspect.getmembers(stock.RunConfig, lambda value: isinstance(value, property))
    assert {name for name, _ in theirs} <= set(PROPERTIES)


def test_replace_leaves_the_config_as_it_is() -> None:
    config = run_config.RunConfig(model_dir="m")
    changed = config.replace(model_dir="n")
    assert (config.model_dir, changed.model_dir) == ("m", "n")
    assert type(changed) is run_config.RunConfig


# Calls that fail, with the built-in type; the message must show the last word.
REFUSED: dict[str, tuple[type[Exception], Callable[[Any], Any], str]] = {
    "both intervals replaced": (
        ValueError,
        lambda c: c.RunConfig().replace(save_checkpoints_steps=1, save_checkpoints_secs=2),
        "cannot be both set.* 1 and 2",
    ),
    "log steps": (ValueError, lambda c: c.RunConfig(log_step_count_steps=0), "0"),
    "protocol": (ValueError, lambda c: c.RunConfig(protocol="http"), "'http'"),
    "timeout": (ValueError, lambda c: c.RunConfig(session_creation_timeout_secs=0), "0"),
    "master and cluster": (
        *(ValueError, lambda c: c.RunConfig(master="a", cluster=_Resolver())),
        "'a'",
    ),
    "cluster twice": (
        ValueError,
        lambda c: c.RunConfig(
            cluster=_Resolver(),
            session_config=tf.compat.v1.ConfigProto(
                cluster_def=tf.train.ClusterSpec({"worker": ["a:1"]}).as_cluster_def()
            ),
        ),
        "cluster_def",
    ),
    "unknown argument": (TypeError, lambda c: c.RunConfig(no_such=1), "no_such"),
    "iterations": (ValueError, lambda c: c.TPUConfig("2d"), "'2d'"),
    "eval input": (ValueError, lambda c: c.TPUConfig(eval_training_input_configuration=4), "4"),
    "sleep": (TypeError, lambda c: c.TPUConfig(initial_infeed_sleep_secs=0.5), "0.5"),
    "partition length": (
        ValueError,
        lambda c: c.TPUConfig(
            input_partition_dims=[1, 2, 3],
            num_cores_per_replica=2,
            per_host_input_for_training=3,
        ),
        r"\[1, 2, 3\]",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_bad_config_is_refused_by_value(name: str, namespace: Any) -> None:
    """A setting out of range is refused with stock's built-in type; our message shows it."""
    kind, call, shown = REFUSED[name]
    with pytest.raises(kind) as caught:
        call(namespace.tpu)
    assert caught.type is kind or isinstance(caught.value, errors.EngineError)
    assert namespace is not estimator or re.search(shown, str(caught.value))


@pytest.mark.parametrize(
    ("value", "expected"),
    [(5, (5, "count")), ("5", (5, "count")), ("30s", (30, "seconds")), ("2m", (120, "seconds"))],
)
def test_iterations_per_loop_are_steps_or_a_time(value: Any, expected: tuple[int, str]) -> None:
    """A number is steps; a number with s, m or h is a time in seconds."""
    assert run_config.parse_iterations_per_loop(value) == expected


# --- TF_CONFIG -----------------------------------------------------------------------------

PARAMETER_SERVERS = {"chief": ["a:1"], "worker": ["b:1", "c:1"], "ps": ["d:1", "e:1"]}


def at(cluster: Any, job: str, index: int, **more: Any) -> dict[str, Any]:
    return {"cluster": cluster, "task": {"type": job, "index": index}, **more}


CHIEF = {"chief": ["a:1"]}
ALLOWED_CLUSTERS: dict[str, Any] = {
    **{
        f"{job} {index} beside parameter servers": at(PARAMETER_SERVERS, job, index)
        for job, index in (("chief", 0), ("worker", 0), ("worker", 1), ("ps", 1), ("evaluator", 0))
    },
    **{
        f"{job} {index} of another order": at(dict(reversed(PARAMETER_SERVERS.items())), job, index)
        for job, index in (("chief", 0), ("worker", 1), ("ps", 0))
    },
    "master beside parameter servers": at(
        {"ps": ["d:1"], "master": ["a:1"]}, "master", 0, session_master="grpc://b"
    ),
    "nothing": {},
    "worker": {"task": {"type": "worker", "index": 0}},
    "model_dir": {"model_dir": "there"},
    "masters": {"session_master": "grpc://a", "eval_session_master": "grpc://b"},
    "service": {"service": {"tpu_worker_job_name": "tpus"}},
    "chief": at(CHIEF, "chief", 0),
    "chief without a server, whose address may be any text": at({"chief": ["here"]}, "chief", 0),
    "master": at({"master": ["a:1"]}, "master", 0),
    "evaluator": at(CHIEF, "evaluator", 0, eval_session_master="grpc://b"),
}


@needs_stock
@pytest.mark.parametrize("name", ALLOWED_CLUSTERS)
def test_tf_config_is_read_like_stock(
    name: str, stock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one process in the cluster, or parameter servers, all properties are stock's."""
    monkeypatch.setenv("TF_CONFIG", json.dumps(ALLOWED_CLUSTERS[name]))
    assert _shown(run_config.RunConfig()) == _shown(stock.RunConfig())


REFUSED_CLUSTERS: dict[str, tuple[Any, str]] = {
    "another job": (at({**CHIEF, "ps": ["b:1"], "helper": ["c:1"]}, "chief", 0), "'helper': 1"),
    "workers": (
        at({**CHIEF, "worker": ["b:1", "c:1"]}, "worker", 1),
        "'worker': 2.*Add the parameter servers",
    ),
    "no task": ({"cluster": CHIEF}, "task"),
    "model_dir empty": ({"model_dir": ""}, "model_dir in TF_CONFIG"),
    "no object": ([1], r"\[1\]"),
    "no JSON": ("{", "TF_CONFIG.*not JSON"),
}


IN_CLUSTER = at(PARAMETER_SERVERS, "ps", 0)
ADDRESSES: dict[str, str | None] = {
    "127.0.0.1:2222": None,
    "d:1": None,
    "first-ps-0.first.svc:65535": None,
    "[::1]:2222": None,
    "[fe80::1%eth0]:2222": None,
    "": "ps 0 is at ''",
    "d": "ps 0 is at 'd'",
    "d:": "HOST:PORT",
    ":2222": "HOST:PORT",
    "d:x": "HOST:PORT",
    "d:0": "from 1 to 65535",
    "d:65536": "from 1 to 65535",
    "d:1 ": "HOST:PORT",
    "grpc://d:1": "HOST:PORT",
    "::1:2222": "in brackets",
    "e:1": "ps 0 and ps 1 are at the same address, 'e:1'",
    "a:1": "chief 0 and ps 0 are at the same address",
}
"""Addresses of the parameter server 0, and parts of the errors for those at which none listens."""


@pytest.mark.parametrize("address", ADDRESSES)
def test_addresses_are_those_of_servers(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An address at which no server can listen, or two would have to, is refused by name."""
    cluster = {**PARAMETER_SERVERS, "ps": [address, "e:1"]}
    monkeypatch.setenv("TF_CONFIG", json.dumps({**IN_CLUSTER, "cluster": cluster}))
    shown = ADDRESSES[address]
    if shown is None:
        assert run_config.RunConfig().cluster_spec.as_dict()["ps"][0] == address
    else:
        with pytest.raises(errors.InvalidSpec, match=re.escape(shown)):
            run_config.RunConfig()


ODD: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 7, 0.5, "", "x", "1", "chief"),
    *([], {}, [1], {"a": 1}, [[]], [None], ["a:1", "a:1"]),
)


def changed_at_each_place(config: Any, odd: Any) -> Iterator[Any]:
    """Yields copies of a JSON value with an odd one in the place of each part of it."""
    yield odd
    if isinstance(config, (dict, list)):
        for key, part in config.items() if isinstance(config, dict) else enumerate(config):
            for changed in changed_at_each_place(part, odd):
                copy = config.copy()
                copy[key] = changed
                yield copy


@pytest.mark.parametrize("odd", ODD, ids=repr)
def test_whatever_is_in_tf_config_is_read_or_refused_by_name(
    odd: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An odd value anywhere in TF_CONFIG is no other error than one that names it."""
    whole = {**IN_CLUSTER, "model_dir": "m", "session_master": "a", "eval_session_master": "b"}
    whole["service"] = {"tpu_worker_job_name": "t"}
    configs = list(changed_at_each_place(whole, odd))
    assert len(configs) > 15
    texts = []
    for config in configs:
        monkeypatch.setenv("TF_CONFIG", json.dumps(config))
        try:
            run_config.RunConfig()
        except errors.EngineError as error:
            texts.append(str(error))
    assert [text for text in texts if "TF_CONFIG" not in text] == []


@pytest.mark.parametrize("name", REFUSED_CLUSTERS)
def test_clusters_that_are_not_run_are_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers without parameter servers and contradictions are ValueErrors that show them."""
    config, shown = REFUSED_CLUSTERS[name]
    monkeypatch.setenv("TF_CONFIG", config if name == "no JSON" else json.dumps(config))
    with pytest.raises(ValueError, match=shown) as caught:
        run_config.RunConfig()
    assert isinstance(caught.value, errors.EngineError)


def test_two_model_dirs_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CONFIG", json.dumps({"model_dir": "there"}))
    with pytest.raises(ValueError, match=r"'here'.*'there'"):
        run_config.RunConfig(model_dir="here")

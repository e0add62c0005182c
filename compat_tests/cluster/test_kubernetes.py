"""Manifests for Kubernetes describe a cluster that the bridge accepts, with correct addresses."""

from __future__ import annotations

import json
import re
import runpy
from typing import Any

import pytest

from compat_tests.support.paths import EXAMPLES
from estimator_bridge.legacy.tf_config import read_task

PROGRAM = EXAMPLES / "kubernetes_cluster.py"
ARGUMENTS = ["--name=first", "--image=registry/image:1", "--claim=models"]
TRAIN = ["--", "train.py", "--model_dir=/models/first"]
NAME = re.compile(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?")
"""A label of the domain name system (RFC 1035), which names of Services and pods must be."""


def items(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[tuple[str, str], Any]:
    runpy.run_path(str(PROGRAM))["main"]([*ARGUMENTS, *arguments, *TRAIN])
    printed = json.loads(capsys.readouterr().out)
    assert (printed["apiVersion"], printed["kind"]) == ("v1", "List")
    by_name = {(item["kind"], item["metadata"]["name"]): item for item in printed["items"]}
    assert len(by_name) == len(printed["items"])
    return by_name


def pods(manifests: dict[tuple[str, str], Any]) -> dict[str, dict[str, Any]]:
    """Returns the template of each pod by its address without the port, as Kubernetes makes them.

    A StatefulSet names its pods by itself and their index, of which a label tells; TF_CONFIG may
    refer to variables of the container that are defined before it.
    """
    pods_by_host = {}
    for (kind, name), item in manifests.items():
        if kind not in ("StatefulSet", "Job"):
            continue
        template, count = item["spec"]["template"], item["spec"].get("replicas", 1)
        for index in range(count):
            host, domain = f"{name}-{index}", item["spec"].get("serviceName")
            if kind == "Job":
                host, domain = template["spec"]["hostname"], template["spec"]["subdomain"]
            values: dict[str, str] = {}
            for variable in template["spec"]["containers"][0]["env"]:
                if "valueFrom" in variable:
                    field = variable["valueFrom"]["fieldRef"]["fieldPath"]
                    assert (kind, field) == (
                        "StatefulSet",
                        "metadata.labels['apps.kubernetes.io/pod-index']",
                    )
                    values[variable["name"]] = str(index)
                else:
                    text = variable["value"]
                    for known, value in values.items():
                        text = text.replace(f"$({known})", value)
                    assert "$(" not in text
                    values[variable["name"]] = text
            pods_by_host[f"{host}.{domain}"] = {"template": template, "environment": values}
    return pods_by_host


@pytest.mark.parametrize("workers", [0, 3])
def test_every_task_has_a_pod_at_its_address(
    workers: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """TF_CONFIG of each pod is read, and names the pod itself at its own place."""
    manifests = items(capsys, f"--workers={workers}", "--ps=2")
    by_host = pods(manifests)
    assert len(by_host) == 1 + workers + 2
    for address, pod in by_host.items():
        config = json.loads(pod["environment"]["TF_CONFIG"])
        task = read_task(config)
        jobs = task.cluster_spec.as_dict()
        assert {job: len(tasks) for job, tasks in jobs.items()} == {
            "chief": 1,
            "ps": 2,
            **({"worker": workers} if workers else {}),
        }
        assert jobs[task.task_type][task.task_id] == f"{address}:2222"
        assert {each.partition(":")[0] for tasks in jobs.values() for each in tasks} == set(by_host)


def test_labels_and_ports_fit(capsys: pytest.CaptureFixture[str]) -> None:
    """The Service, the policy and the StatefulSets select the pods that they are made for."""
    manifests = items(capsys)
    service, policy = (
        manifests["Service", "first"]["spec"],
        manifests["NetworkPolicy", "first"]["spec"],
    )
    assert service["clusterIP"] == "None"
    for pod in pods(manifests).values():
        labels = pod["template"]["metadata"]["labels"].items()
        (container,) = pod["template"]["spec"]["containers"]
        assert service["selector"].items() <= labels
        assert policy["podSelector"]["matchLabels"].items() <= labels
        assert [port["containerPort"] for port in container["ports"]] == [2222]
        (mount,), (volume,) = container["volumeMounts"], pod["template"]["spec"]["volumes"]
        assert mount["name"] == volume["name"]
    for (kind, name), item in manifests.items():
        assert NAME.fullmatch(name)
        if kind == "StatefulSet":
            assert item["spec"]["serviceName"] == "first"
            selected = item["spec"]["selector"]["matchLabels"]
            assert selected == item["spec"]["template"]["metadata"]["labels"]
    assert [port["port"] for port in policy["ingress"][0]["ports"]] == [2222]
    assert [port["port"] for port in service["ports"]] == [2222]


def test_the_chief_runs_the_program_and_the_others_serve(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Only the Job may end: pods of a StatefulSet cannot have another policy than Always."""
    manifests = items(capsys)
    commands = {
        name: item["spec"]["template"]["spec"]["containers"][0]["command"]
        for (_, name), item in manifests.items()
        if "template" in item["spec"]
    }
    assert commands == {
        "first-chief": ["estimator-bridge", "run", "train.py", "--model_dir=/models/first"],
        "first-worker": ["estimator-bridge", "serve"],
        "first-ps": ["estimator-bridge", "serve"],
    }
    policies = {
        kind: item["spec"]["template"]["spec"].get("restartPolicy", "Always")
        for (kind, _), item in manifests.items()
        if "template" in item["spec"]
    }
    assert policies == {"StatefulSet": "Always", "Job": "OnFailure"}


def test_names_that_are_no_addresses_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """A name that Kubernetes would refuse, or cut off, is an error at once."""
    for name in ("First", "1st", "first-", "a" * 41, "a.b"):
        with pytest.raises(SystemExit):
            items(capsys, f"--name={name}")
        assert repr(name) in capsys.readouterr().err

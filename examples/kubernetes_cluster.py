"""Writes Kubernetes manifests of a cluster: a chief, workers and parameter servers.

    python examples/kubernetes_cluster.py --image registry/image --claim models --ps 4 -- train.py
        --model_dir=/models/first | kubectl apply -f -

A StatefulSet of parameter servers, one of workers, and a Job for the chief: every pod has an
address that stays, and comes back there. All mount one volume, which must be of the kind
ReadWriteMany, and a NetworkPolicy lets nobody else in. JSON, which kubectl reads as it does YAML.
Needs Kubernetes 1.28 for the index of a pod among its labels. Once the Job is complete,

    kubectl delete statefulset,job,service,networkpolicy -l estimator-bridge/job=training
"""

import argparse
import json
import re
import shlex
import sys

PORT = 2222
LABEL = "estimator-bridge/job"
INDEX = "metadata.labels['apps.kubernetes.io/pod-index']"
# Enough for a chief that ends because a task is lost; a program that fails is not tried for ever.
RETRIES = 20


def cluster_of(name, counts):
    """Returns the cluster of TF_CONFIG: the address of each pod, by its type of task and index."""
    return {
        job: [f"{name}-{job}-{index}.{name}:{PORT}" for index in range(count)]
        for job, count in counts.items()
        if count
    }


def tf_config(cluster, job):
    """Returns TF_CONFIG of a pod; Kubernetes puts the index in, of the chief there is one."""
    config = {"cluster": cluster, "task": {"type": job, "index": "$(INDEX)"}}
    return json.dumps(config).replace('"$(INDEX)"', "0" if job == "chief" else "$(INDEX)")


def pod(options, cluster, job, command):
    """Returns the template of the pods of a type of task."""
    resources = {"cpu": options.cpu, "memory": options.memory}
    index = {"name": "INDEX", "valueFrom": {"fieldRef": {"fieldPath": INDEX}}}
    container = {
        "name": "task",
        "image": options.image,
        "command": command,
        "ports": [{"containerPort": PORT}],
        "resources": {"requests": resources, "limits": {"memory": options.memory}},
        "env": [
            *([] if job == "chief" else [index]),
            {"name": "TF_CONFIG", "value": tf_config(cluster, job)},
        ],
        "volumeMounts": [{"name": "models", "mountPath": options.mount}],
    }
    volume = {"name": "models", "persistentVolumeClaim": {"claimName": options.claim}}
    spec = {"containers": [container], "volumes": [volume]}
    return {"metadata": {"labels": {LABEL: options.name, "task": job}}, "spec": spec}


def chief(options, cluster):
    """Returns the Job of the chief, which runs the program; its pod has a name that stays."""
    template = pod(options, cluster, "chief", ["estimator-bridge", "run", *options.program])
    template["spec"] |= {
        "hostname": f"{options.name}-chief-0",
        "subdomain": options.name,
        "restartPolicy": "OnFailure",
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": f"{options.name}-chief", "labels": {LABEL: options.name}},
        "spec": {"backoffLimit": RETRIES, "template": template},
    }


def servers(options, cluster, job):
    """Returns the StatefulSet of the workers, or of the parameter servers.

    They end with the chief, and start again: the next chief, of an evicted pod, say, finds them.
    """
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": f"{options.name}-{job}", "labels": {LABEL: options.name}},
        "spec": {
            "serviceName": options.name,
            "replicas": len(cluster[job]),
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": {LABEL: options.name, "task": job}},
            "template": pod(options, cluster, job, ["estimator-bridge", "serve"]),
        },
    }


def service(name):
    """Returns the headless Service that gives each pod its address, before it is ready, too."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "labels": {LABEL: name}},
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {LABEL: name},
            "ports": [{"name": "grpc", "port": PORT}],
        },
    }


def network_policy(name):
    """Returns the policy by which tasks are reached by tasks of the same cluster alone."""
    pods = {"podSelector": {"matchLabels": {LABEL: name}}}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": name, "labels": {LABEL: name}},
        "spec": {
            **pods,
            "policyTypes": ["Ingress"],
            "ingress": [{"from": [pods], "ports": [{"protocol": "TCP", "port": PORT}]}],
        },
    }


def manifests(options):
    """Returns all manifests, as one list."""
    cluster = cluster_of(options.name, {"chief": 1, "worker": options.workers, "ps": options.ps})
    tasks = [servers(options, cluster, job) for job in cluster if job != "chief"]
    items = [service(options.name), network_policy(options.name), *tasks, chief(options, cluster)]
    return {"apiVersion": "v1", "kind": "List", "items": items}


def name(text):
    """Returns a name that can be part of the addresses of pods."""
    if not re.fullmatch(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?", text):
        raise argparse.ArgumentTypeError(
            f"{text!r} must be at most 40 small letters, digits and dashes, a letter first"
        )
    return text


def positive(text):
    """Returns a number above 0."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not positive")
    return number


def main(arguments=None):
    """Writes the manifests to standard output."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--name", type=name, default="training", help="of the cluster")
    parser.add_argument("--image", required=True, help="has the program and estimator-bridge")
    parser.add_argument("--claim", required=True, help="the PersistentVolumeClaim of all tasks")
    parser.add_argument("--mount", default="/models", help="where tasks see its volume")
    parser.add_argument("--workers", type=int, default=2, help="0: the chief runs the cores")
    parser.add_argument("--ps", type=positive, default=2, help="parameter servers")
    parser.add_argument("--cpu", default="4", help="of each task")
    parser.add_argument("--memory", default="16Gi", help="of each task; see estimator-bridge plan")
    parser.add_argument("program", nargs="+", help="the program and its arguments, behind --")
    options = parser.parse_args(arguments)
    if not any(options.mount in argument for argument in options.program):
        sys.stderr.write(
            f"Note: nothing of {shlex.join(options.program)} is below {options.mount}, where all "
            "tasks must see the model_dir.\n"
        )
    json.dump(manifests(options), sys.stdout, indent=2)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()

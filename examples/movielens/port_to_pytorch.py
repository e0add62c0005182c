"""The model of train.py in PyTorch, with the same numbers: a replay of its recording.

  estimator-bridge record -o recorded train.py --data_dir=DIR --model_dir=DIR --use_tpu --dropout=0
  python port_to_pytorch.py --data_dir=DIR recorded port
  estimator-bridge verify --against-recording recorded port

Needs PyTorch, and of the bridge only `estimator_bridge.recording`, which needs NumPy alone.
"""

import argparse
import math

import numpy as np
import ratings
import torch
from torch import nn

from estimator_bridge.recording import Replay

RATE, TABLE_RATE, L2, STEPS = 0.003, 0.4, 0.1, 1600
# The constants of TensorFlow's Adam are float32; 0.999 as a double would decay differently.
BETAS = 0.9, float(np.float32(0.999))
EPSILON = 1e-8
TABLES = {
    "tbl_user_id": (943, 17, "mean"),
    "tbl_items": (1682, 17, "mean"),
    "tbl_age": (7, 8, "mean"),
    "tbl_gender": (2, 8, "mean"),
    "tbl_genres_weighted_by_genre_weights": (19, 8, "sum"),
    "tbl_occupation": (21, 8, "mean"),
}
CONTEXT = ("age", "gender", "genres", "occupation")
LAYERS = {"taste": "taste", "query": "query", "hidden": "hidden_0", "output": "output"}
"""The layers by their names here, and in train.py."""


class MovieLens(nn.Module):
    """Predicts ratings; the tables are bags of embeddings, by their names in train.py."""

    def __init__(self, mean, dropout=0.0):
        super().__init__()
        self.tables = nn.ModuleDict(
            {
                name: nn.EmbeddingBag(rows, dim, mode=mode)
                for name, (rows, dim, mode) in TABLES.items()
            }
        )
        self.taste = nn.Linear(32, 16, bias=False)
        self.query = nn.Linear(16, 16, bias=False)
        self.hidden = nn.Linear(97, 32)
        self.output = nn.Linear(32, 1)
        self.mean, self.dropout = mean, nn.Dropout(dropout)

    def look_up(self, features, bags):
        """Returns the activations by feature; `features` has the table of each."""
        activations = {}
        for key, table in features.items():
            bag = bags(key)
            weights = None if bag.weights is None else torch.from_numpy(bag.weights)
            ids, offsets = torch.from_numpy(bag.ids), torch.from_numpy(bag.offsets)
            rows = self.tables[table](ids, offsets, per_sample_weights=weights)
            activations[key] = rows.reshape(*bag.shape, -1)
            if rows.requires_grad:
                activations[key].retain_grad()
        return activations

    def forward(self, of, past_rating, length):
        """Returns the ratings, [batch], and the penalty of long vectors."""
        user, item, history = of["user_id"], of["item_id"], of["history"][:, :, :-1]
        penalty = sum(rows.square().sum(1).mean() for rows in (user, item))
        user, user_bias = user[:, :-1], user[:, -1]
        item, item_bias = item[:, :-1], item[:, -1]
        mask = (torch.arange(history.shape[1]) < length[:, None]).float()

        scale = torch.rsqrt(mask.sum(1, keepdim=True) + 1.0)
        seen = scale * history.sum(1)
        liked = scale * torch.einsum("bt,btd->bd", past_rating, history)
        user = user + self.taste(torch.cat([seen, liked], 1))

        likeness = mask * torch.sigmoid(torch.einsum("bd,btd->bt", self.query(item), history))
        neighbours = (likeness * past_rating).sum(1) / (likeness.sum(1) + 1.0)

        context = [of[key] for key in CONTEXT]
        net = torch.cat([user, item, user * item, liked, *context, neighbours[:, None]], 1)
        net = self.output(torch.relu(self.hidden(self.dropout(net))))
        agreement = self.dropout(user * item).sum(1)
        rating = self.mean + user_bias + item_bias + agreement + net[:, 0]
        return rating, penalty

    def dense(self):
        """Yields the parameters of the layers by TensorFlow's names."""
        for name, of_tensorflow in LAYERS.items():
            layer = getattr(self, name)
            yield f"{of_tensorflow}/kernel", layer.weight
            if layer.bias is not None:
                yield f"{of_tensorflow}/bias", layer.bias


class Training:
    """Trains as train.py does: Adagrad for the tables, and Adam with a cosine for the layers."""

    def __init__(self, model, features):
        self.model, self.features = model, features
        self.adagrad = torch.optim.Adagrad(
            model.tables.parameters(), TABLE_RATE, initial_accumulator_value=0.1, eps=0.0
        )
        self.adam = torch.optim.Adam([each for _, each in model.dense()], RATE, betas=BETAS)

    def load(self, state, step):
        """Takes over tables, slots and layers as they were before a step, from 1."""
        number = torch.tensor(float(step - 1))
        for name, parts in state.tables.items():
            weight = self.model.tables[name].weight
            weight.data.copy_(torch.from_numpy(parts["rows"]))
            total = torch.from_numpy(parts["accumulators"].copy())
            self.adagrad.state[weight] = {"step": number.clone(), "sum": total}
        for name, weight in self.model.dense():
            slots = [turned(state.dense[f"{name}/{slot}"]) for slot in ("Adam", "Adam_1")]
            weight.data.copy_(turned(state.dense[name]))
            self.adam.state[weight] = {
                "step": number.clone(),
                "exp_avg": slots[0],
                "exp_avg_sq": slots[1],
            }

    def rate(self, arrays, bags):
        """Returns the ratings, [batch], the penalty of long vectors, and the activations."""
        activations = self.model.look_up(self.features, bags)
        length = torch.bincount(
            torch.from_numpy(arrays["features/history.indices"][:, 0]),
            minlength=len(arrays["labels"]),
        )
        past_rating = torch.from_numpy(arrays["features/history_rating"])
        return *self.model(activations, past_rating, length), activations

    def step(self, number, arrays, bags):
        """Makes step `number`, from 1; returns its loss and activations."""
        rating, penalty, activations = self.rate(arrays, bags)
        labels = torch.from_numpy(arrays["labels"])
        loss = (rating - labels).square().mean() + L2 * penalty
        self.adagrad.zero_grad()
        self.adam.zero_grad()
        loss.backward()
        for group in self.adam.param_groups:
            group["lr"] = RATE * 0.5 * (1 + math.cos(math.pi * (number - 1) / STEPS))
            # TensorFlow adds epsilon before it corrects the bias, and PyTorch after it.
            group["eps"] = EPSILON / math.sqrt(1 - BETAS[1] ** number)
        self.adagrad.step()
        self.adam.step()
        return loss, activations

    def tables(self):
        """Returns rows and slots by table."""
        return {
            name: {
                "rows": bag.weight.detach(),
                "accumulators": self.adagrad.state[bag.weight]["sum"],
            }
            for name, bag in self.model.tables.items()
        }

    def dense(self):
        """Returns the layers and their slots by TensorFlow's names and in its layout."""
        found = {}
        for name, weight in self.model.dense():
            parts = {"": weight, "/Adam": self.adam.state[weight]["exp_avg"]}
            parts["/Adam_1"] = self.adam.state[weight]["exp_avg_sq"]
            found.update({name + part: turned(each) for part, each in parts.items()})
        return found


def turned(kernel):
    """Converts a kernel from [in, out], as in TensorFlow, to PyTorch's [out, in], or back."""
    return torch.as_tensor(kernel).detach().clone().permute(*range(kernel.ndim - 1, -1, -1))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data_dir", required=True, help="Folder of ml-100k.{inter,item,user}.")
    parser.add_argument("recording", help="What `estimator-bridge record` wrote of train.py.")
    parser.add_argument("out", help="Folder to write.")
    options = parser.parse_args()
    *_, mean = ratings.load(options.data_dir)
    # The first sqrt of a process can be wrong by 1e-4 if it runs in several threads
    # (pytorch#188792). This one runs in a single thread, and later ones are right.
    torch.ones(1).sqrt()
    program = f"port_to_pytorch.py, PyTorch {torch.__version__}"
    left_out = ("beta1_power", "beta2_power")
    with Replay(options.recording, options.out, program=program, left_out=left_out) as replay:
        features = {key: name for name, table in replay.tables.items() for key in table["features"]}
        training = Training(MovieLens(mean), features)
        for step in replay:
            training.load(step.state, step.number)
            loss, activations = training.step(step.number, step.arrays, step.bag)
            gradients = {key: each.grad for key, each in activations.items()}
            gradients |= {name: turned(weight.grad) for name, weight in training.model.dense()}
            step.record(
                loss=loss.detach(),
                activations={key: each.detach() for key, each in activations.items()},
                gradients=gradients,
                tables=training.tables(),
                dense=training.dense(),
            )


if __name__ == "__main__":
    main()

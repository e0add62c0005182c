"""Goes on with a training of train.py in PyTorch, from its checkpoint, and prints the test RMSE.

  estimator-bridge convert --to torch model_dir/model.ckpt-800 converted
  python train_on_in_pytorch.py --data_dir=DIR converted

Needs PyTorch and safetensors, and of the bridge only `estimator_bridge.recording`.
"""

import argparse
import pathlib

import numpy as np
import ratings
import torch
from port_to_pytorch import STEPS, TABLES, MovieLens, Training
from safetensors.numpy import load_file

from estimator_bridge.recording import Bag, State

BATCH = 512
FEATURES = {
    "user_id": "tbl_user_id",
    "item_id": "tbl_items",
    "history": "tbl_items",
    "age": "tbl_age",
    "gender": "tbl_gender",
    "genres": "tbl_genres_weighted_by_genre_weights",
    "occupation": "tbl_occupation",
}


def converted(directory):
    """Returns the state that `convert --to torch` wrote, and the number of steps done."""
    files = ("model", "optimizer", "variables")
    model, optimizer, dense = (load_file(directory / f"{each}.safetensors") for each in files)
    tables = {}
    for name in TABLES:
        key = f"embedding_bags.{name}.weight"
        accumulators = optimizer[f"state.{key}.{name}.momentum1"]
        tables[name] = {"rows": model[key], "accumulators": accumulators}
    return State(tables, dense), int(dense["global_step"])


def batch_of(data, rows):
    """Returns the arrays of a batch, and its ids by feature, as a recording has them."""
    one_each = np.arange(len(rows))
    bags = {
        key: Bag(data[key][rows], one_each, None, (len(rows),))
        for key in ("user_id", "item_id", "age", "gender", "occupation")
    }
    genres = data["genres"][rows]
    lengths = np.array([len(each) for each in genres])
    weights = np.repeat(1.0 / lengths, lengths).astype(np.float32)
    bags["genres"] = Bag(np.concatenate(genres), starts(lengths), weights, (len(rows),))
    history = data["history"][rows]
    is_there = history >= 0
    bags["history"] = Bag(history[is_there], starts(is_there.ravel()), None, history.shape)
    arrays = {
        "features/history.indices": np.argwhere(is_there),
        "features/history_rating": data["history_rating"][rows],
        "labels": data["rating"][rows],
    }
    return arrays, bags


def starts(lengths):
    return np.cumsum(lengths, dtype=np.int64) - lengths


def shuffled(count, seed):
    """Yields the rows of each batch, without end, in a new order each time."""
    random = np.random.default_rng(seed)
    rows = np.empty(0, np.int64)
    while True:
        if len(rows) < BATCH:
            rows = np.concatenate([rows, random.permutation(count)])
        yield rows[:BATCH]
        rows = rows[BATCH:]


def rmse(training, data):
    """Returns the error of ratings that are clipped to 1 to 5 stars, as train.py's metric."""
    training.model.eval()
    arrays, bags = batch_of(data, np.arange(len(data["rating"])))
    with torch.no_grad():
        rating, *_ = training.rate(arrays, bags.__getitem__)
    error = rating.clip(1, 5).numpy() - data["rating"]
    return float(np.sqrt(np.square(error).mean()))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data_dir", required=True, help="Folder of ml-100k.{inter,item,user}.")
    parser.add_argument("--dropout", type=float, default=0.5, help="As in train.py.")
    parser.add_argument("--seed", type=int, default=1, help="Decides the order and the dropout.")
    parser.add_argument("converted", help="What `estimator-bridge convert --to torch` wrote.")
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    train, test, mean = ratings.load(options.data_dir)
    training = Training(MovieLens(mean, options.dropout), FEATURES)
    state, done = converted(pathlib.Path(options.converted))
    training.load(state, done + 1)
    print(f"step {done}: test RMSE {rmse(training, test):.4f}")
    training.model.train()
    batches = shuffled(len(train["rating"]), options.seed)
    for number in range(done + 1, STEPS + 1):
        arrays, bags = batch_of(train, next(batches))
        training.step(number, arrays, bags.__getitem__)
    print(f"step {STEPS}: test RMSE {rmse(training, test):.4f}")


if __name__ == "__main__":
    main()

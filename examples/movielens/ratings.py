"""Reads MovieLens as train.py does, with NumPy alone: the same split, columns and histories."""

import pathlib

import numpy as np

HISTORY, TEST_SHARE = 20, 0.1
AGE_BUCKETS = (18, 25, 35, 45, 50, 56)
GENRES = (
    *("unknown", "Action", "Adventure", "Animation", "Children's", "Comedy", "Crime"),
    *("Documentary", "Drama", "Fantasy", "Film-Noir", "Horror", "Musical", "Mystery"),
    *("Romance", "Sci-Fi", "Thriller", "War", "Western"),
)
OCCUPATIONS = (
    *("administrator", "artist", "doctor", "educator", "engineer", "entertainment"),
    *("executive", "healthcare", "homemaker", "lawyer", "librarian", "marketing", "none"),
    *("other", "programmer", "retired", "salesman", "scientist", "student", "technician"),
    "writer",
)
GENDERS = ("F", "M")


def load(data_dir, seed=1):
    """Reads the ratings.

    Returns:
        train, test: dicts with an entry per rating: ids by feature, "genres" (a list of ids for
            each), "history" and "history_rating" [n, HISTORY], filled up with -1 and 0, and
            "rating" [n].
        mean: of the training ratings.
    """
    folder = pathlib.Path(data_dir)
    users, films, ratings = (
        table(folder / f"ml-100k.{kind}") for kind in ("user", "item", "inter")
    )
    user, film = (
        positions(ratings[key], of[key]) for key, of in (("user_id", users), ("item_id", films))
    )
    rating = np.array(ratings["rating"], np.float32)
    is_test = np.zeros(len(rating), bool)
    order = np.random.RandomState(seed).permutation(len(rating))
    is_test[order[: int(TEST_SHARE * len(rating))]] = True
    mean = rating[~is_test].mean()
    past = histories(user, np.array(ratings["timestamp"], np.int64), ~is_test)
    genres = [positions(each.split(), GENRES) for each in films["class"]]
    columns = {
        "user_id": user,
        "item_id": film,
        "age": np.digitize(np.array(users["age"], np.int64), AGE_BUCKETS)[user],
        "gender": positions(users["gender"], GENDERS)[user],
        "occupation": positions(users["occupation"], OCCUPATIONS)[user],
        "genres": np.array(genres, object)[film],
        "history": np.where(past >= 0, film[past], -1),
        "history_rating": np.where(past >= 0, rating[past] - mean, 0).astype(np.float32),
        "rating": rating,
    }
    train, test = ({k: each[rows] for k, each in columns.items()} for rows in (~is_test, is_test))
    return train, test, float(mean)


def table(path):
    """Reads tab separated text whose header is `name:type ...`; returns the columns by name."""
    header, *lines = path.read_text(encoding="utf-8").splitlines()
    names = [field.split(":")[0] for field in header.split("\t")]
    return dict(zip(names, zip(*(line.split("\t") for line in lines))))


def positions(values, vocabulary):
    places = {value: i for i, value in enumerate(vocabulary)}
    return np.array([places[value] for value in values], np.int64)


def histories(user, timestamp, is_train):
    """Returns which training ratings a user gave before each rating, latest first.

    The result is [ratings, HISTORY], filled up with -1.
    """
    past = np.full((len(user), HISTORY), -1)
    for each in range(user.max() + 1):
        mine = np.flatnonzero(user == each)
        seen = mine[is_train[mine]]
        seen = seen[np.argsort(timestamp[seen], kind="stable")]
        for row, older in zip(mine, np.searchsorted(timestamp[seen], timestamp[mine])):
            latest = seen[max(0, older - HISTORY) : older][::-1]
            past[row, : len(latest)] = latest
    return past

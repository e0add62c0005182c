# Runs legacy programs on CPUs. Without a command it trains the MovieLens example:
#     docker build -t estimator-bridge . && docker run --rm estimator-bridge
#     docker run --rm -v "$PWD:/job" -w /job estimator-bridge estimator-bridge run train.py
FROM python:3.11-slim
# The compiler is for the native ops, which the first engine compiles for the processor at hand.
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /opt/estimator-bridge
COPY . .
RUN pip install --no-cache-dir -c constraints/tf221.txt '.[migrate]'
# Whoever runs the container may write there, and compiled code is taken from its owner alone.
RUN useradd --create-home bridge
USER bridge
WORKDIR /home/bridge
CMD python /opt/estimator-bridge/examples/movielens/fetch.py --data_dir data \
    && estimator-bridge run /opt/estimator-bridge/examples/movielens/train.py \
        --data_dir data --model_dir model_dir --use_tpu

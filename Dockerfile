# An image with the package and its suites gymnax, Brax, EnvPool and Gymnasium: docker build -t jaxrl-dist . && docker run --rm -v "$PWD/runs:/work/runs" jaxrl-dist train --list
# For NVIDIA GPUs: docker build --build-arg JAX_EXTRA=cuda12 -t jaxrl-dist . && docker run --rm --gpus=all -v "$PWD/runs:/work/runs" jaxrl-dist train --list
# The other commands: docker run --rm -v "$PWD/runs:/work/runs" jaxrl-dist evaluate --run=runs/x
# There is no git inside, so the commit in config.json is unknown.
FROM python:3.11-slim

# Libraries for the renderers of Brax and Gymnasium.
RUN apt-get update && apt-get install --yes --no-install-recommends libegl1 libgl1 libglib2.0-0 \
    && rm -rf /var/lib/apt/lists/*

ARG JAX_EXTRA=""
WORKDIR /package
COPY pyproject.toml requirements.lock README.md LICENSE ./
COPY jaxrl_dist jaxrl_dist
COPY benchmarks/reference benchmarks/reference
# Without the extra, JAX for CPUs, as pinned; with it, the same version of JAX for that platform.
RUN pip install --no-cache-dir --requirement requirements.lock \
    && if [ -n "$JAX_EXTRA" ]; then pip install --no-cache-dir --constraint requirements.lock "jax[$JAX_EXTRA]"; fi \
    && pip install --no-cache-dir --no-deps .

WORKDIR /work
ENTRYPOINT ["jaxrl-dist"]

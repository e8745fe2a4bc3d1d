# phmctl on a CPU:
#   docker build -t phmctl .
#   docker run --rm -v "$PWD:/work" phmctl train miniature --n 4
# Nobody has built this image yet: no Docker daemon was at hand. `make wheel-test` tests the same installation.
FROM python:3.12-slim

# torch's builds for CPUs: 0.2 GB instead of 6 GB with CUDA.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY phmctl phmctl
COPY recipes recipes
COPY data/cards data/cards
RUN pip install --no-cache-dir --index-url "$TORCH_INDEX" "torch>=2.4" \
    && pip install --no-cache-dir ".[ctranslate2,onnx,report,serve]"

# Runs, prepared data and caches are written into the mounted folder.
RUN useradd --create-home phmctl
USER phmctl
WORKDIR /work
ENTRYPOINT ["phmctl"]

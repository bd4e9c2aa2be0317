# An image in which everything builds and every test without a GPU runs. Its steps are those of
# scripts/setup. With a GPU: docker build --build-arg BASE=nvidia/cuda:13.0.0-devel-ubuntu24.04
# --build-arg NODE=22 .
ARG BASE=debian:12
FROM ${BASE}
ARG NODE=22
RUN apt-get update -qq && \
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
      ca-certificates curl git \
      build-essential cmake ninja-build libopenblas-pthread-dev liburing-dev \
      libgloo-dev xz-utils && \
    curl -fsSL https://deb.nodesource.com/setup_${NODE}.x | bash - && \
    apt-get install -y -qq --no-install-recommends nodejs && \
    rm -rf /var/lib/apt/lists/*
WORKDIR /ds
COPY package.json package-lock.json .npmrc ./
RUN npm ci --include=dev --ignore-scripts --no-fund --no-audit
COPY . .
RUN npm run --silent build
CMD ["node", "examples/gpt2-offload.js"]

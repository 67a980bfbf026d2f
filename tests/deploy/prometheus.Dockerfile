# Stands in for the official prometheus image where no registry can be reached: Debian's Prometheus behind the same words, folder and user.
# For tests/deploy/test_compose_run.py only.
ARG BASE=docker.io/library/python:3.11-slim-bookworm
FROM ${BASE}
RUN apt-get update \
    && apt-get install --yes --no-install-recommends prometheus \
    && rm -rf /var/lib/apt/lists/* \
    && install --directory --owner 65534 --group 65534 /prometheus
USER 65534:65534
ENTRYPOINT ["prometheus"]

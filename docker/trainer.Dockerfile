# A hospital's private side: data, learners, noise and ledger. It runs without a network.
# For GPUs: FLAVOUR=trainer-gpu and an empty TORCH_INDEX: the torch of pip's own index is built for CUDA.
ARG BASE=docker.io/library/python:3.11-slim-bookworm
ARG FLAVOUR=trainer

# Dependencies before code: this stage changes with the pins only.
FROM ${BASE} AS dependencies
ARG FLAVOUR
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /build
COPY docker/requirements/${FLAVOUR}.txt ./
RUN python3 -m venv --without-pip /opt/consilium \
    && pip --python /opt/consilium/bin/python install --no-compile --no-deps --only-binary :all: \
        ${TORCH_INDEX:+--extra-index-url "${TORCH_INDEX}"} --constraint "${FLAVOUR}.txt" torch \
    && pip --python /opt/consilium/bin/python install --no-compile --no-deps --only-binary :all: -r "${FLAVOUR}.txt" \
    && pip --python /opt/consilium/bin/python check
COPY docker/finish.py ./
RUN python3 finish.py /opt/consilium

FROM dependencies AS code
COPY docker/requirements/build.txt ./
RUN pip install --no-deps --only-binary :all: -r build.txt
COPY pyproject.toml README.md LICENSE ./
COPY wire wire
COPY silo_agent/__init__.py silo_agent/
COPY silo_agent/shared silo_agent/shared
COPY silo_agent/trainer silo_agent/trainer
RUN pip wheel --no-deps --no-build-isolation --wheel-dir wheels . \
    && pip --python /opt/consilium/bin/python install --no-compile --no-deps --no-index --no-warn-script-location --root /code wheels/*.whl \
    && python3 finish.py /code/opt/consilium

FROM ${BASE}
# What a shell inside could install more with. Agent (10002) and trainer (10001) are two users; group 10003 is for the folder they share, where
# each may create and nobody may remove what is the other's.
RUN rm -rf /usr/local/bin/pip* /usr/local/bin/wheel /usr/bin/pip* /usr/bin/wheel \
        /usr/local/lib/python3.11/ensurepip /usr/lib/python3.11/ensurepip \
        /usr/local/lib/python3.11/site-packages/* /usr/lib/python3/dist-packages/* \
    && printf "consilium:x:10001:\nexchange:x:10003:consilium\n" >> /etc/group \
    && echo "consilium:x:10001:10001::/tmp:/usr/sbin/nologin" >> /etc/passwd \
    && install --directory --owner 10001 --group 10001 --mode 0700 /data /var/lib/consilium \
        /var/lib/consilium/silo /var/lib/consilium/silo/trainer /var/lib/consilium/silo/witness \
    && install --directory --owner 0 --group 10003 --mode 3770 /var/lib/consilium/silo/exchange
COPY --from=dependencies /opt/consilium /opt/consilium
COPY --from=code /code/opt/consilium /opt/consilium
ENV PATH=/opt/consilium/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    HOME=/tmp \
    CONSILIUM_SILO_HOME=/var/lib/consilium/silo
WORKDIR /var/lib/consilium
USER 10001:10001
STOPSIGNAL SIGTERM
# A machine that trains answers late.
HEALTHCHECK --interval=30s --timeout=30s --start-period=5m --retries=10 CMD ["consilium", "agent", "probe-trainer"]
ENTRYPOINT ["consilium"]
CMD ["agent", "trainer"]
# Version, revision and source are given by `make images`: not every engine's cache notices a build argument in a LABEL.
LABEL org.opencontainers.image.title="Consilium trainer" \
      org.opencontainers.image.description="Learns from a hospital's data and votes; has no network" \
      org.opencontainers.image.licenses="Apache-2.0"

# A hospital's network side: no learner library, and of our code neither the private side nor the coordinator.
ARG BASE=docker.io/library/python:3.11-slim-bookworm

# Dependencies before code: this stage changes with the pins only.
FROM ${BASE} AS dependencies
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /build
COPY docker/requirements/agent.txt ./
RUN python3 -m venv --without-pip /opt/consilium \
    && pip --python /opt/consilium/bin/python install --no-compile --no-deps --only-binary :all: -r agent.txt \
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
COPY silo_agent/agent silo_agent/agent
RUN pip wheel --no-deps --no-build-isolation --wheel-dir wheels . \
    && pip --python /opt/consilium/bin/python install --no-compile --no-deps --no-index --no-warn-script-location --root /code wheels/*.whl \
    && python3 finish.py /code/opt/consilium

FROM ${BASE}
# What a shell inside could install more with. Agent (10002) and trainer (10001) are two users; group 10003 is for the folder they share, where
# each may create and nobody may remove what is the other's.
RUN rm -rf /usr/local/bin/pip* /usr/local/bin/wheel /usr/bin/pip* /usr/bin/wheel \
        /usr/local/lib/python3.11/ensurepip /usr/lib/python3.11/ensurepip \
        /usr/local/lib/python3.11/site-packages/* /usr/lib/python3/dist-packages/* \
    && printf "consilium:x:10002:\nexchange:x:10003:consilium\n" >> /etc/group \
    && echo "consilium:x:10002:10002::/tmp:/usr/sbin/nologin" >> /etc/passwd \
    && install --directory --owner 10002 --group 10002 --mode 0700 /var/lib/consilium \
        /var/lib/consilium/silo /var/lib/consilium/silo/identity /var/lib/consilium/silo/agent \
    && install --directory --owner 0 --group 10003 --mode 3770 /var/lib/consilium/silo/exchange
COPY --from=dependencies /opt/consilium /opt/consilium
COPY --from=code /code/opt/consilium /opt/consilium
ENV PATH=/opt/consilium/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    HOME=/tmp \
    CONSILIUM_SILO_HOME=/var/lib/consilium/silo
WORKDIR /var/lib/consilium
USER 10002:10002
# Metrics, for the hospital's own Prometheus; everything else is dialled outwards.
EXPOSE 9465
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=30s --timeout=10s --start-period=2m --retries=3 CMD ["consilium", "agent", "probe"]
ENTRYPOINT ["consilium"]
CMD ["agent", "relay"]
# Version, revision and source are given by `make images`: not every engine's cache notices a build argument in a LABEL.
LABEL org.opencontainers.image.title="Consilium agent" \
      org.opencontainers.image.description="Carries a hospital's votes; sees no data" \
      org.opencontainers.image.licenses="Apache-2.0"

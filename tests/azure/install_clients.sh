#!/bin/sh
# Fetch a vendor's client into DIRECTORY, a virtual environment of its own: `sdk` (forewarn and the libraries for Python,
# and the one for JavaScript where node is) or `az` (the command line). Quick when all is there; where the index does
# not have it, that is said, nothing is left half done, and the tests that need it say so.
#
#   tests/azure/install_clients.sh sdk .venv-azure python3
#   tests/azure/install_clients.sh az .venv-az python3
set -eu
client=$1
directory=$2
python=$3
limit_s=1200
sdk="azure-mgmt-compute==39.0.0 azure-mgmt-maintenance==2.2.0b4 azure-identity==1.27.0 azure-core==1.41.0 aiohttp>=3.10"
node="@azure/arm-compute@24.1.0 @azure/identity@4.13.1"
az="azure-cli==2.91.0"

stamp=$directory/.fetched
newer() { test "$stamp" -nt "$1"; }
newer "$0" && { test "$client" = az || newer pyproject.toml; } && exit
test -x "$directory/bin/python" || "$python" -m venv "$directory"

fetch() {
    timeout "$limit_s" "$directory/bin/python" -m pip install --quiet --quiet --disable-pip-version-check "$@"
}

case $client in
sdk)
    echo "fetching Azure's libraries into $directory (once; about a minute)"
    # shellcheck disable=SC2086
    fetch -e '.[server,dev]' $sdk
    if command -v npm >/dev/null; then
        mkdir -p "$directory/node"
        # Node has CAs of its own; those of the system count too, as for everybody else here.
        system=/etc/ssl/certs/ca-certificates.crt
        test -e "$system" && export NODE_EXTRA_CA_CERTS="${NODE_EXTRA_CA_CERTS:-$system}"
        # shellcheck disable=SC2086
        timeout 300 npm install --prefix "$directory/node" --silent --no-audit --no-fund --no-save $node || {
            rm -rf "$directory/node"
            echo "no library for JavaScript: $node could not be fetched; the tests that need it are skipped"
        }
    else
        echo "no node here: the tests of the JavaScript library are skipped"
    fi
    ;;
az)
    echo "fetching the az command line into $directory (once; about three minutes, 730 MB)"
    fetch "$az" || {
        rm -rf "$directory"
        echo "no az: $az could not be fetched within $limit_s s; the tests that need it are skipped"
        exit 0
    }
    ;;
esac
touch "$stamp"

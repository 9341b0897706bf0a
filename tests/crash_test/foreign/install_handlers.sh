#!/bin/sh
# Fetches handlers of scheduled events that others wrote into DIRECTORY: those of PyPI into a virtual environment,
# Pacemaker's resource agents of Debian 12 and 13 as unpacked packages. Nothing is installed on this machine, and no
# daemon is started. Does nothing if they are there. Tests of a handler that could not be fetched are skipped.
#
#   tests/crash_test/foreign/install_handlers.sh .venv-handlers python3
set -eu
directory=$1
python=$2
pypi="ai4s-jobq==3.13.1 dask-cloudprovider[azure]==2025.9.0 termination-handler==0.0.5"

stamp=$directory/.fetched
test "$stamp" -nt "$0" && exit
echo "fetching handlers of Debian and PyPI into $directory (once; about two minutes)"

test -x "$directory/bin/python" || "$python" -m venv "$directory"
for package in $pypi; do
    "$directory/bin/python" -m pip install --quiet --disable-pip-version-check "$package" ||
        echo "no $package: PyPI does not have it for this Python; its tests are skipped"
done

"$(dirname "$0")/fetch_resource_agents.sh" "$directory" bookworm trixie
touch "$stamp"

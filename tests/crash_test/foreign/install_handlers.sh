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
suites="bookworm trixie"
keyring=/usr/share/keyrings/debian-archive-keyring.gpg

stamp=$directory/.fetched
test "$stamp" -nt "$0" && exit
echo "fetching handlers of Debian and PyPI into $directory (once; about two minutes)"

test -x "$directory/bin/python" || "$python" -m venv "$directory"
for package in $pypi; do
    "$directory/bin/python" -m pip install --quiet --disable-pip-version-check "$package" ||
        echo "no $package: PyPI does not have it for this Python; its tests are skipped"
done

# The mirror that this machine uses, with the indexes of other suites in a directory of their own.
mirror=$(apt-get indextargets --format '$(REPO_URI)' 2>/dev/null | grep '/debian/$' | head -n 1) || mirror=
if [ "$mirror" ]; then
    indexes=$(mktemp -d)
    trap 'rm -rf "$indexes"' EXIT
    mkdir -p "$indexes/lists/partial" "$indexes/cache/archives/partial"
    for suite in $suites; do
        echo "deb [signed-by=$keyring] $mirror $suite main" >"$indexes/sources.list"
        cat >"$indexes/apt.conf" <<END
Dir::Etc::SourceList "$indexes/sources.list";
Dir::Etc::SourceParts "/dev/null";
Dir::State::Lists "$indexes/lists";
Dir::Cache "$indexes/cache";
APT::Sandbox::User "root";
Acquire::Languages "none";
END
        if (cd "$indexes" && APT_CONFIG=$indexes/apt.conf && export APT_CONFIG &&
            apt-get update -qq && apt-get download -qq resource-agents); then
            dpkg-deb -x "$indexes"/resource-agents_*.deb "$directory/$suite"
            rm "$indexes"/resource-agents_*.deb
        else
            echo "no resource-agents of $suite: the mirror does not have them; their tests are skipped"
        fi
    done
else
    echo "no Debian: the tests of its resource agents are skipped"
fi
touch "$stamp"

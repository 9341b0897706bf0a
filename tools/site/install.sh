#!/bin/sh
# Installs what `make site` needs into DIRECTORY: the generator from PyPI, and two scripts that the site ships from npm.
# Quick if everything is installed.
#
#   tools/site/install.sh .venv-site python3
set -eu
directory=$1
python=$2
mermaid=mermaid@12.3.0
shim=iframe-worker@1.0.4 # lets the search run where a page is opened as a file

stamp=$directory/.fetched
test "$stamp" -nt "$0" && test "$stamp" -nt pyproject.toml && exit
if ! command -v npm >/dev/null; then
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        echo "make site needs npm, for the script that draws diagrams: install Node.js" >&2
        exit 1
    fi
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends npm >/dev/null
fi
echo "installing the generator of the site into $directory (once; about half a minute)"
test -x "$directory/bin/python" || "$python" -m venv "$directory"
"$directory/bin/python" -m pip install --quiet --disable-pip-version-check -e '.[site]'
fetched=$(mktemp -d)
trap 'rm -rf "$fetched"' EXIT
for package in $mermaid $shim; do
    (cd "$fetched" && npm pack --silent "$package" >/dev/null)
done
tar -xzf "$fetched"/mermaid-*.tgz -C "$fetched" package/dist/mermaid.min.js
tar -xzf "$fetched"/iframe-worker-*.tgz -C "$fetched" package/shim/index.js
mkdir -p "$directory/scripts"
cp "$fetched/package/dist/mermaid.min.js" "$directory/scripts/mermaid.min.js"
cp "$fetched/package/shim/index.js" "$directory/scripts/iframe-worker.js"
touch "$stamp"

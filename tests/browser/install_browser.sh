#!/bin/sh
# Fetch what looks at the portal: Debian's chromium (as root, with apt-get), and into DIRECTORY forewarn, what drives a
# browser, and axe-core, which knows what people cannot read or reach. Quick when all is there; where chromium cannot be
# had, that is said, and the tests that need it say so.
#
#   tests/browser/install_browser.sh .venv-portal python3
set -eu
directory=$1
python=$2
pypi="playwright>=1.49 axe-playwright-python>=0.1.4"

if ! command -v chromium >/dev/null; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        echo "installing Debian's chromium (once; about a minute)"
        export DEBIAN_FRONTEND=noninteractive
        apt-get update -qq
        apt-get install -y -qq --no-install-recommends chromium >/dev/null ||
            echo "no chromium: Debian does not have it; the tests that need it are skipped"
    else
        echo "no chromium, and no Debian or not root: the tests that need it are skipped"
    fi
fi

stamp=$directory/.fetched
test "$stamp" -nt "$0" && test "$stamp" -nt pyproject.toml && exit
echo "fetching what drives a browser into $directory (once; about a minute)"
test -x "$directory/bin/python" || "$python" -m venv "$directory"
# shellcheck disable=SC2086
"$directory/bin/python" -m pip install --quiet --disable-pip-version-check -e '.[server,agent,dev]' $pypi
touch "$stamp"

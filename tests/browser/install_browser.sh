#!/bin/sh
# Installs what the browser tests need: Debian's chromium (as root, with apt-get), and in DIRECTORY a virtual environment
# with forewarn, Playwright and axe-core (accessibility checks). Quick if everything is installed. Without chromium the
# tests are skipped.
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
            echo "chromium cannot be installed: the browser tests are skipped"
    else
        echo "chromium is not installed, and this is not Debian or not root: the browser tests are skipped"
    fi
fi

stamp=$directory/.fetched
test "$stamp" -nt "$0" && test "$stamp" -nt pyproject.toml && exit
echo "installing Playwright into $directory (once; about a minute)"
test -x "$directory/bin/python" || "$python" -m venv "$directory"
# shellcheck disable=SC2086
"$directory/bin/python" -m pip install --quiet --disable-pip-version-check -e '.[server,agent,dev]' $pypi
touch "$stamp"

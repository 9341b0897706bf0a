#!/bin/sh
# Unpacks Pacemaker's resource agents of suites of Debian, each into DIRECTORY/SUITE. Nothing is installed. Needs Debian,
# whose mirror it uses. A suite that the mirror does not have is named and left out.
#
#   fetch_resource_agents.sh DIRECTORY bookworm trixie
set -eu
directory=$1
shift
keyring=/usr/share/keyrings/debian-archive-keyring.gpg

# The mirror that this machine uses, with the indexes of other suites in a directory of their own.
mirror=$(apt-get indextargets --format '$(REPO_URI)' 2>/dev/null | grep '/debian/$' | head -n 1) || mirror=
[ "$mirror" ] || { echo "no Debian: the tests of its resource agents are skipped"; exit 0; }
indexes=$(mktemp -d)
trap 'rm -rf "$indexes"' EXIT
mkdir -p "$indexes/lists/partial" "$indexes/cache/archives/partial" "$directory"
for suite; do
    echo "deb [signed-by=$keyring] $mirror $suite main" >"$indexes/sources.list"
    cat >"$indexes/apt.conf" <<-CONF
	Dir::Etc::SourceList "$indexes/sources.list";
	Dir::Etc::SourceParts "/dev/null";
	Dir::State::Lists "$indexes/lists";
	Dir::Cache "$indexes/cache";
	APT::Sandbox::User "root";
	Acquire::Languages "none";
	CONF
    if (cd "$indexes" && APT_CONFIG=$indexes/apt.conf && export APT_CONFIG &&
        apt-get update -qq && apt-get download -qq resource-agents); then
        dpkg-deb -x "$indexes"/resource-agents_*.deb "$directory/$suite"
        rm "$indexes"/resource-agents_*.deb
    else
        echo "no resource-agents of $suite: the mirror does not have them; their tests are skipped"
    fi
done

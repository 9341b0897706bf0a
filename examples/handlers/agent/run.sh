#!/bin/sh
# Runs the agent with a configuration of this directory, but keeps its state in the working directory, and its board in the
# directory that the VMs of a crash test share. On a real VM the systemd unit in deploy/ runs the agent.
#
#     agent/run.sh maintenance
set -eu
shared=${FOREWARN_SHARED_DIRECTORY:-$PWD}
sed -e "s|/var/lib/forewarn-agent|$PWD/agent-state|" -e "s|/mnt/shared|$shared|" "$(dirname "$0")/$1.toml" >"${TMPDIR:-/tmp}/agent.toml"
exec forewarn agent run --config "${TMPDIR:-/tmp}/agent.toml"

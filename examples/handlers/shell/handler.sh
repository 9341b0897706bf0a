#!/bin/sh
# Prepares this VM for its scheduled events, approves them, and recovers when they are over:
#
#     handler.sh 'systemctl stop my-app' 'systemctl start my-app'
#
# Both commands must be harmless when they run twice. A command that fails is repeated, and nothing is approved before
# the first one has succeeded. Needs curl and jq. State is kept in $STATE_DIRECTORY (systemd: StateDirectory=), which
# must survive a reboot.
set -u
prepare=${1:?"usage: handler.sh PREPARE RECOVER"}
recover=${2:?"usage: handler.sh PREPARE RECOVER"}
metadata=${FOREWARN_ENDPOINT:-http://169.254.169.254}/metadata
events="$metadata/scheduledevents?api-version=2020-07-01"
state=${STATE_DIRECTORY:-.}/handler-state # empty files: prepare-begun, prepared.EVENT.BOOT
boot=$(cat /proc/sys/kernel/random/boot_id)
mkdir -p "$state" || exit

request() { # every request has a time limit, and ignores proxies
    curl --silent --show-error --fail --noproxy '*' --connect-timeout 3 --max-time 10 --header Metadata:true "$@"
}

own_events() { # prints a line for each event of this VM: id, status, kind. Fails if the answer is not a document.
    request "$events" | jq --slurp --raw-output --arg me "$me" '
        .[0].Events
        | if type == "array" then .[] else error("the answer is not a document") end
        | select(type == "object" and (.EventId | type == "string" and test("^[0-9A-Za-z-]+$")))
        | select(any(.Resources[]?; type == "string" and ascii_downcase == ($me | ascii_downcase)))
        | "\(.EventId) \(.EventStatus) \(.EventType)"'
}

run_prepare() { # takes the ids of the events
    echo "preparing for $*"
    touch "$state/prepare-begun"
    sh -c "$prepare" </dev/null || return
    for id; do touch "$state/prepared.$id.$boot"; done
}

run_recover() {
    echo "recovering"
    sh -c "$recover" </dev/null && rm -f "$state"/*
}

approve() { # takes the id of an event; an approval that fails is repeated at the next poll
    request --data "{\"StartRequests\":[{\"EventId\":\"$1\"}]}" "$events" || return
    approved="$approved$1 " # not kept over a restart: approving twice is harmless
    echo "approved $1"
}

me='' job='' approved=' ' polls_without_events=0
while sleep 1; do
    # The host name is not the VM's name in a scale set, so the service is asked.
    [ -n "$me" ] || me=$(request "$metadata/instance/compute/name?api-version=2021-02-01&format=text") || continue
    own=$(own_events) || continue # an answer that is not a document says nothing about events
    [ -n "$own" ] || approved=' '
    due='' is_listed=''
    while read -r id status kind; do
        case $kind in
            Freeze) is_ready=1 ;; # pauses the VM for seconds and loses nothing
            Reboot | Redeploy | Preempt | Terminate)
                is_listed=1 is_ready=''
                if [ -e "$state/prepared.$id.$boot" ]; then
                    is_ready=1
                elif [ "$status" = Scheduled ]; then # once Started, it is too late to prepare
                    due="$due $id"
                fi
                ;;
            *) continue ;; # a kind that this program does not know
        esac
        case "$is_ready $status $kind $approved" in
            *" Preempt "* | *" $id "*) ;; # approving an eviction would only give time away
            "1 Scheduled "*) approve "$id" ;;
        esac
    done <<END
$own
END
    # A document may be older than the one before: events are over when three documents in a row do not list them.
    polls_without_events=$((polls_without_events + 1))
    [ -z "$is_listed" ] || polls_without_events=0
    # A command runs in the background, one at a time, so that the polls go on.
    if [ -n "$job" ] && kill -0 "$job" 2>/dev/null; then
        continue
    elif [ -n "$due" ]; then
        # shellcheck disable=SC2086  # ids have no spaces
        run_prepare $due &
        job=$!
    elif [ "$polls_without_events" -ge 3 ] && [ -e "$state/prepare-begun" ]; then
        run_recover &
        job=$!
    fi
done

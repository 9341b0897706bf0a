#!/usr/bin/env bash
# Runs a command for every event that is announced for this VM, then approves it:
#     drain.sh systemctl stop my-worker
# The command is given EVENT_ID and EVENT_KIND. An event whose command fails is not approved, and met again.
set -uo pipefail
endpoint="${SCHEDULEDEVENTSIP:-169.254.169.254}"
pause="${POLL_S:-1}"

ask() {
    curl -sS --fail --noproxy '*' --max-time 150 -H Metadata:true "$@"
}

value_of() { # of a member, in an event that stands on one line
    sed -n "s/.*\"$1\":\"\([^\"]*\)\".*/\1/p" <<<"$event"
}

until me="$(ask "http://$endpoint/metadata/instance/compute/name?api-version=2021-02-01&format=text")"; do
    sleep "$pause"
done

while sleep "$pause"; do
    document="$(ask "http://$endpoint/metadata/scheduledevents?api-version=2020-07-01")" || continue
    while read -r event; do
        [[ "$event" == *'"EventStatus":"Scheduled"'* && "$event" == *"\"$me\""* ]] || continue
        EVENT_ID="$(value_of EventId)" EVENT_KIND="$(value_of EventType)"
        export EVENT_ID EVENT_KIND
        "$@" </dev/null || continue
        ask -d "{\"StartRequests\":[{\"EventId\":\"$EVENT_ID\"}]}" \
            "http://$endpoint/metadata/scheduledevents?api-version=2020-07-01"
    done < <(sed 's/},{/}\n{/g' <<<"$document" | grep '"EventId"')
done

#!/usr/bin/env bash
# Runs a command for every scheduled event of this VM, then approves the event:
#     drain.sh systemctl stop my-worker
# The command gets EVENT_ID and EVENT_KIND. If it fails, the event is not approved, and the command runs again.
set -uo pipefail
endpoint="${SCHEDULEDEVENTSIP:-169.254.169.254}"
pause="${POLL_S:-1}"

request() {
    curl -sS --fail --noproxy '*' --max-time 150 -H Metadata:true "$@"
}

value_of() { # the value of a member, in an event on one line
    sed -n "s/.*\"$1\":\"\([^\"]*\)\".*/\1/p" <<<"$event"
}

until me="$(request "http://$endpoint/metadata/instance/compute/name?api-version=2021-02-01&format=text")"; do
    sleep "$pause"
done

while sleep "$pause"; do
    document="$(request "http://$endpoint/metadata/scheduledevents?api-version=2020-07-01")" || continue
    while read -r event; do
        [[ "$event" == *'"EventStatus":"Scheduled"'* && "$event" == *"\"$me\""* ]] || continue
        EVENT_ID="$(value_of EventId)" EVENT_KIND="$(value_of EventType)"
        export EVENT_ID EVENT_KIND
        "$@" </dev/null || continue
        request -d "{\"StartRequests\":[{\"EventId\":\"$EVENT_ID\"}]}" \
            "http://$endpoint/metadata/scheduledevents?api-version=2020-07-01"
    done < <(sed 's/},{/}\n{/g' <<<"$document" | grep '"EventId"')
done

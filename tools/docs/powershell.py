"""Generates docs/reference/powershell.md: a PowerShell call for every route of the ARM facade (`make docs`)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from forewarn.arm.routing import COMPUTE_PATH, ArmRoute
from tools.docs.azure_api import MAINTENANCE_SECTION, routes_by_section, section_of, success_statuses

# Variables that the page sets at its top, and the paths they stand for; the first prefix of a path wins.
_ID_VARIABLES = {
    "instanceId": f"{COMPUTE_PATH}/virtualMachineScaleSets/{{set}}/virtualMachines/{{instance}}",
    "scaleSetId": f"{COMPUTE_PATH}/virtualMachineScaleSets/{{set}}",
    "availabilitySetId": f"{COMPUTE_PATH}/availabilitySets/{{set}}",
    "vmId": f"{COMPUTE_PATH}/virtualMachines/{{vm}}",
    "compute": COMPUTE_PATH,
}
# $event is an automatic variable of PowerShell.
_VARIABLE_NAMES = {"subscription": "sub", "event": "eventId", "operation": "operationId"}
_PATH_PARAM = re.compile(r"\{(\w+)\}")
_WIDTH = 120
_JSON = "-ContentType 'application/json'"

_INSTANCES_BODY = "$body = @{ instanceIds = @('0', '1') } | ConvertTo-Json"
_EVENTS_BODY = "$body = @{ value = @($eventId) } | ConvertTo-Json"
_TAGS_BODY = "$body = @{ tags = @{ team = 'shop'; stage = 'test' } } | ConvertTo-Json"
_PROFILE_BODY = """\
$body = @'
{
  "properties": {
    "scheduledEventsProfile": {
      "terminateNotificationProfile": { "enable": true, "notBeforeTimeout": "PT10M" }
    },
    "scheduledEventsPolicy": {
      "userInitiatedReboot": { "automaticallyApprove": true },
      "userInitiatedRedeploy": { "automaticallyApprove": false }
    }
  }
}
'@"""
_SET_PROFILE_BODY = """\
$body = @'
{
  "properties": {
    "virtualMachineProfile": {
      "scheduledEventsProfile": {
        "terminateNotificationProfile": { "enable": true, "notBeforeTimeout": "PT10M" }
      }
    }
  }
}
'@"""
_PATCH_BODIES = {"VMs": _PROFILE_BODY, "Scale sets": _SET_PROFILE_BODY}

# Title, the cmdlet, what it sends, the status of the response, and what follows from it.
_CMDLETS = (
    (
        "Restart a VM",
        "Restart-AzVM -ResourceGroupName $group -Name $vm",
        'Invoke-AzRestMethod -Method POST -Path "$vmId/restart?$version"',
        "202: a Reboot with 15 minutes of notice",
    ),
    (
        "Redeploy a VM",
        "Set-AzVM -ResourceGroupName $group -Name $vm -Redeploy",
        'Invoke-AzRestMethod -Method POST -Path "$vmId/redeploy?$version"',
        "202: a Redeploy with 10 minutes of notice",
    ),
    (
        "Restart instances of a scale set",
        "Restart-AzVmss -ResourceGroupName $group -VMScaleSetName $scaleSet -InstanceId '0', '1'",
        "$body = @{ instanceIds = @('0', '1') } | ConvertTo-Json\n"
        'Invoke-AzRestMethod -Method POST -Path "$scaleSetId/restart?$version" -Payload $body',
        "202: a Reboot of each instance",
    ),
    (
        "Approve an event",
        "Approve-AzScheduledEvent -ResourceGroupName $group -ResourceType 'virtualMachines' -ResourceName $vm `\n"
        "    -ScheduledEventId $eventId",
        '$acknowledge = "$vmId/providers/Microsoft.Maintenance/scheduledevents/$eventId/acknowledge"\n'
        'Invoke-AzRestMethod -Method POST -Path "${acknowledge}?$approvalVersion"',
        "200: the event is approved",
    ),
)

_PAGE = """\
# From PowerShell

*Generated from `src/forewarn/arm/` by `make docs`; change the routes there, not this page.*

**These commands were never run in PowerShell.** A test parses every line below with a small parser of our own, which
knows the documented parameters of these cmdlets. It sends each `Invoke-RestMethod`, `Invoke-WebRequest` and
`Invoke-AzRestMethod` to forewarn's API, and so tests paths, methods, bodies and responses. It does not test how to
trust the CA, nor whether the Az modules sign in as written under [Az](#az). [Azure's API](azure-api.md) says what
the calls do.

The lines are for PowerShell 7. In its strings a `?` belongs to the name before it, so write `"${{vmId}}?…"`.

## Cmdlets

These are the cmdlets that people type. Az sends one request for each, which the command after it sends too. The
[names](#names) are set below.

{cmdlets}
## Trust

The service has a certificate of forewarn's own CA, unless you gave it another one. On Linux, PowerShell reads trusted
CAs from `SSL_CERT_FILE`, if that is set before it starts:

```sh
eval "$(forewarn env)"
pwsh
```

On Windows, copy the file that `forewarn ca export ca.crt` writes, and trust it for your own account; Windows asks you
to confirm:

```powershell
Import-Certificate -FilePath 'ca.crt' -CertStoreLocation 'Cert:\\CurrentUser\\Root'
```

Do not use `-SkipCertificateCheck`: it would send your secret to any server that answers.

## Sign in

A client has an id and a secret; its roles decide what it may do:

```sh
forewarn access client add scripts --secret-file scripts.secret
forewarn access grant Operator --to scripts --over-group lab
forewarn access grant ScheduledEventContributor --to scripts --over-group lab
```

Read the secret from its file, so that it does not appear in the history of the shell:

```powershell
{sign_in}
```

The token expires after an hour (the setting `token_minutes`): sign in again.

## Az

**Untested.** The Az modules read from the service where to sign in, and get a token themselves. `forewarn env` prints
the tenant.

```powershell
{az}
```

Then `Invoke-AzRestMethod` sends the token. It returns errors like any other response: check `StatusCode` and
`Content`. Its documentation says that it waits for operations with `-WaitForCompletion`.

## Names

These are the names of the sample fleet of `forewarn up`. Only Spot VMs can be evicted: in that fleet, the instances of
the scale set `batch`. VMs and `forewarn events` show the ids of events; the id of an operation is in the header
`x-ms-request-id` of the response that started it.

```powershell
{names}
```

## Wait for an operation

A request that is answered with 202 takes time: until its events are approved, or their notice has ended. The header
`Azure-AsyncOperation` has the address to poll. This polls for at most half an hour:

```powershell
{wait}
```

## Calls

Each call is shown twice: with the token from above, and with Az. The number is the status of a successful response.
`Invoke-RestMethod` throws on an error; `ErrorDetails.Message` has forewarn's message. The routes of maintenance
configurations are not shown here: [Azure's API](azure-api.md#maintenance-configurations) has their paths.

{sections}"""

_SIGN_IN = """\
$base = 'https://localhost:8443'
$clientId = 'scripts'
$secret = Get-Content -Path 'scripts.secret' -TotalCount 1
$form = @{
    grant_type    = 'client_credentials'
    client_id     = $clientId
    client_secret = $secret
    scope         = 'https://management.azure.com/.default'
}
$token = Invoke-RestMethod -Method Post -Uri "$base/adfs/oauth2/token" -Body $form
$headers = @{ Authorization = "Bearer $($token.access_token)" }"""

_AZ = """\
$tenant = '00000000-0000-0000-0000-000000000000'
$password = ConvertTo-SecureString -String $secret -AsPlainText -Force
$credential = New-Object -TypeName pscredential -ArgumentList $clientId, $password
Add-AzEnvironment -Name forewarn -ARMEndpoint $base -Scope Process
Connect-AzAccount -Environment forewarn -ServicePrincipal -Credential $credential -Tenant $tenant -Scope Process"""

_SET_NAMES = """\
$version = 'api-version=2024-11-01'
$approvalVersion = 'api-version=2023-10-01-preview'
$sub = '00000000-0000-0000-0000-000000000001'
$group = 'lab'
$location = 'westeurope'
$vm = 'web-0'
$scaleSet = 'workers'
$instance = '0'
$availabilitySet = 'db'
$eventId = '00000000-0000-0000-0000-000000000000'
$operationId = '00000000-0000-0000-0000-000000000000'

$compute = "/subscriptions/$sub/resourceGroups/$group/providers/Microsoft.Compute"
$vmId = "$compute/virtualMachines/$vm"
$scaleSetId = "$compute/virtualMachineScaleSets/$scaleSet"
$instanceId = "$scaleSetId/virtualMachines/$instance"
$availabilitySetId = "$compute/availabilitySets/$availabilitySet\""""

_WAIT = """\
$answer = Invoke-WebRequest -Method Post -Uri "$base$vmId/restart?$version" -Headers $headers
$operation = $answer.Headers['Azure-AsyncOperation'][0]
foreach ($poll in 1..360) {
    $state = Invoke-RestMethod -Method Get -Uri $operation -Headers $headers
    if ($state.status -ne 'InProgress') { break }
    Start-Sleep -Seconds 5
}
if ($state.status -ne 'Succeeded') { throw "the operation is $($state.status): $($state.error.message)" }"""


def powershell_markdown(routes: Sequence[ArmRoute]) -> str:
    """The page docs/reference/powershell.md, without the routes of maintenance configurations."""
    authenticated = [r for r in routes if r.right is not None and section_of(r) != MAINTENANCE_SECTION]
    sections = [_section(title, section) for title, section in routes_by_section(authenticated)]
    blocks = {
        "cmdlets": "\n".join(map(_cmdlet_entry, _CMDLETS)),
        "sign_in": _SIGN_IN,
        "az": _AZ,
        "names": _SET_NAMES,
        "wait": _WAIT,
    }
    return _PAGE.format(sections="\n".join(sections), **blocks)


def _cmdlet_entry(entry: tuple[str, str, str, str]) -> str:
    title, cmdlet, request, answer = entry
    return f"{title} ({answer}):\n\n```powershell\n{cmdlet}\n{request}\n```\n"


def _section(title: str, routes: Sequence[ArmRoute]) -> str:
    entries = "\n".join(map(_entry, routes))
    return f"### {title}\n\n{entries}"


def _entry(route: ArmRoute) -> str:
    code = "\n".join(_lines(route))
    return f"`{route.method}` {route.summary} ({success_statuses(route)[0]}):\n\n```powershell\n{code}\n```\n"


def _lines(route: ArmRoute) -> Iterator[str]:
    path = _path(route.path)
    version = "$approvalVersion" if "/Microsoft.Maintenance/" in route.path else "$version"
    body = _body(route, path)
    if body:
        yield body
    body_options = (_JSON, "-Body $body") if body else ()
    yield _command(
        f"Invoke-RestMethod -Method {route.method.title()}",
        f'-Uri "$base{path}?{version}"',
        "-Headers $headers",
        *body_options,
    )
    payload = ("-Payload $body",) if body else ()
    yield _command(f"Invoke-AzRestMethod -Method {route.method}", f'-Path "{path}?{version}"', *payload)


def _command(*pieces: str) -> str:
    """The command in one line, or in several if it is too long."""
    line = " ".join(pieces)
    return line if len(line) <= _WIDTH else " `\n    ".join(pieces)


def _body(route: ArmRoute, path: str) -> str:
    section = section_of(route)
    if route.method == "PUT":
        return _put_body(path)
    if route.method == "PATCH":
        return _PATCH_BODIES.get(section, _TAGS_BODY)
    if route.method == "POST" and route.path.endswith("/scheduledevents"):
        return _EVENTS_BODY
    is_action = route.method == "POST" and not route.path.endswith("/acknowledge")
    return _INSTANCES_BODY if is_action and section == "Scale sets" else ""


def _put_body(path: str) -> str:
    """A PUT removes what it leaves out, so it starts from the whole resource."""
    return (
        f'$model = Invoke-RestMethod -Method Get -Uri "$base{path}?$version" -Headers $headers\n'
        "$model.tags = @{ team = 'shop'; stage = 'test' }\n"
        "$body = $model | ConvertTo-Json -Depth 20"
    )


def _path(template: str) -> str:
    """The path as part of a PowerShell string that continues with `?`."""
    known = next(((name, held) for name, held in _ID_VARIABLES.items() if template.startswith(held)), None)
    text = f"{{{known[0]}}}{template.removeprefix(known[1])}" if known else template
    return _PATH_PARAM.sub(lambda found: _variable(_VARIABLE_NAMES.get(found[1], found[1]), text[found.end() :]), text)


def _variable(name: str, after: str) -> str:
    return f"${name}" if after.startswith("/") else f"${{{name}}}"

"""Generates docs/powershell.md: a PowerShell call for every route of the ARM facade (`make docs`)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from forewarn.arm.routing import ArmRoute
from tools.docs.azure_api import COMPUTE_PATH, routes_by_section, section_of, success_statuses

# Paths begin with one of these, which the page sets at its top. The longest one counts.
_ID_VARIABLES = {
    "instanceId": f"{COMPUTE_PATH}/virtualMachineScaleSets/{{set}}/virtualMachines/{{instance}}",
    "scaleSetId": f"{COMPUTE_PATH}/virtualMachineScaleSets/{{set}}",
    "availabilitySetId": f"{COMPUTE_PATH}/availabilitySets/{{set}}",
    "vmId": f"{COMPUTE_PATH}/virtualMachines/{{vm}}",
    "compute": COMPUTE_PATH,
}
_VARIABLE_NAMES = {
    "subscription": "sub",
    "event": "eventId",
    "operation": "operationId",
}  # $event is one of PowerShell's own
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

_PAGE = """\
# From PowerShell

*Generated from `src/forewarn/arm/` by `make docs`; change the routes there, not this page.*

**No PowerShell was at hand when this was written, and none has run it.** A test reads every line below with a small
reader of forewarn's own, which knows the parameters that these cmdlets are documented to have, and makes each call of
`Invoke-RestMethod`, `Invoke-WebRequest` and `Invoke-AzRestMethod` to forewarn's API: paths, methods, bodies and answers
are tried. How to trust the CA, and whether the Az modules sign in as written under [Az](#az), is not. What the calls do
is in [azure-api.md](azure-api.md).

The lines are for PowerShell 7. In its strings a `?` belongs to the name before it, so it is `"${{vmId}}?…"`.

## Trust

The console shows a certificate of forewarn's own CA, unless you gave it one of yours. On Linux, PowerShell takes those
whom it trusts from `SSL_CERT_FILE`, if that is set before it starts:

```sh
eval "$(forewarn env)"
pwsh
```

On Windows, take there the file that `forewarn ca export ca.crt` writes, and trust it for your own account; Windows asks
whether you mean it:

```powershell
Import-Certificate -FilePath 'ca.crt' -CertStoreLocation 'Cert:\\CurrentUser\\Root'
```

`-SkipCertificateCheck` would do without, and hand your secret to whoever answers.

## Sign in

A client has an id and a secret, and may do what its roles say:

```sh
forewarn access client add scripts --secret-file scripts.secret
forewarn access grant Operator --to scripts --over-group lab
forewarn access grant ScheduledEventContributor --to scripts --over-group lab
```

The secret stays in its file, and out of the history of the shell:

```powershell
{sign_in}
```

After an hour (the setting `token_minutes`) the token is worth nothing: sign in again.

## Az

**Untested.** The Az modules learn from the console where to sign in, and ask it for a token by themselves. The tenant
is the one that `forewarn env` prints.

```powershell
{az}
```

Then `Invoke-AzRestMethod` sends the token. It returns a refusal as it returns any other answer: look at `StatusCode`
and `Content`. With `-WaitForCompletion` it is documented to wait for operations.

## Names

Those of the sample fleet that `forewarn up` starts with. Only Spot VMs can be evicted: of that fleet, those of the
scale set `batch`. An event's id is told to VMs and by `forewarn events`; an operation's is in the header
`x-ms-request-id` of the answer to what was asked for.

```powershell
{names}
```

## Wait for an operation

What is answered with 202 takes time: until its events are approved, or their notice is over. The header
`Azure-AsyncOperation` says where to ask. This asks for half an hour at most:

```powershell
{wait}
```

## Calls

Two for each: with the token from above, and with Az. The number is the status of a good answer. A refusal ends
`Invoke-RestMethod` with an error, whose `ErrorDetails.Message` holds forewarn's sentence.

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
foreach ($turn in 1..360) {
    $state = Invoke-RestMethod -Method Get -Uri $operation -Headers $headers
    if ($state.status -ne 'InProgress') { break }
    Start-Sleep -Seconds 5
}
if ($state.status -ne 'Succeeded') { throw "it is $($state.status): $($state.error.message)" }"""


def powershell_markdown(routes: Sequence[ArmRoute]) -> str:
    closed = [route for route in routes if route.right is not None]
    sections = [_section(title, of) for title, of in routes_by_section(closed)]
    given = {"sign_in": _SIGN_IN, "az": _AZ, "names": _SET_NAMES, "wait": _WAIT}
    return _PAGE.format(sections="\n".join(sections), **given)


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
    sent = (_JSON, "-Body $body") if body else ()
    yield _command(
        f"Invoke-RestMethod -Method {route.method.title()}", f'-Uri "$base{path}?{version}"', "-Headers $headers", *sent
    )
    paid = ("-Payload $body",) if body else ()
    yield _command(f"Invoke-AzRestMethod -Method {route.method}", f'-Path "{path}?{version}"', *paid)


def _command(*pieces: str) -> str:
    """In one line, where it is not too long for a page."""
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
    """What a PUT leaves out it takes away, so it begins with the whole."""
    return (
        f'$model = Invoke-RestMethod -Method Get -Uri "$base{path}?$version" -Headers $headers\n'
        "$model.tags = @{ team = 'shop'; stage = 'test' }\n"
        "$body = $model | ConvertTo-Json -Depth 20"
    )


def _path(template: str) -> str:
    """The path as it stands in a string, for a `?` to follow it."""
    known = next(((name, held) for name, held in _ID_VARIABLES.items() if template.startswith(held)), None)
    text = f"{{{known[0]}}}{template.removeprefix(known[1])}" if known else template
    return _PATH_PARAM.sub(lambda found: _variable(_VARIABLE_NAMES.get(found[1], found[1]), text[found.end() :]), text)


def _variable(name: str, after: str) -> str:
    return f"${name}" if after.startswith("/") else f"${{{name}}}"

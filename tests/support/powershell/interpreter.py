"""Known cmdlets with their parameters (PowerShell 7.4, Az.Accounts 4), variables, and text conversion."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

_COMMON_PARAMETERS = """Debug ErrorAction ErrorVariable InformationAction InformationVariable OutBuffer OutVariable
    PipelineVariable ProgressAction Verbose WarningAction WarningVariable"""
_WEB_PARAMETERS = """AllowInsecureRedirect AllowUnencryptedAuthentication Authentication Body Certificate
CertificateThumbprint
    ConnectionTimeoutSeconds ContentType Credential CustomMethod DisableKeepAlive Form Headers HttpVersion InFile
    MaximumRedirection MaximumRetryCount Method NoProxy OperationTimeoutSeconds OutFile PassThru
    PreserveAuthorizationOnRedirect PreserveHttpMethodOnRedirect Proxy ProxyCredential ProxyUseDefaultCredentials
    Resume RetryIntervalSec SessionVariable SkipCertificateCheck SkipHeaderValidation SkipHttpErrorCheck SslProtocol
    Token TransferEncoding UnixSocket Uri UseBasicParsing UseDefaultCredentials UserAgent WebSession"""
_CONTEXT_PARAMETERS = "DefaultProfile Scope WhatIf Confirm"


def _word_set(*texts: str) -> frozenset[str]:
    return frozenset(" ".join(texts).split())


def _parameter_names(*texts: str) -> frozenset[str]:
    return _word_set(*texts, _COMMON_PARAMETERS)


PARAMETERS: dict[str, frozenset[str]] = {
    "Invoke-WebRequest": _parameter_names(_WEB_PARAMETERS),
    "Invoke-RestMethod": _parameter_names(
        _WEB_PARAMETERS, "FollowRelLink MaximumFollowRelLink ResponseHeadersVariable StatusCodeVariable"
    ),
    "Invoke-AzRestMethod": _parameter_names(
        """ApiVersion AsJob Confirm DefaultProfile FinalResultFrom MaxPageSize Method Name NextLinkName PageableItemName
        Paginate Path Payload PollFrom ResourceGroupName ResourceId ResourceProviderName ResourceType SubscriptionId Uri
        WaitForCompletion WhatIf"""
    ),
    "Restart-AzVM": _parameter_names(
        "AsJob Confirm DefaultProfile Id Name NoWait PerformMaintenance ResourceGroupName WhatIf"
    ),
    "Set-AzVM": _parameter_names(
        """AsJob Confirm DefaultProfile Generalized Id Name NoWait Reapply Redeploy ResourceGroupName SimulateEviction
        WhatIf"""
    ),
    "Restart-AzVmss": _parameter_names(
        "AsJob Confirm DefaultProfile InstanceId ResourceGroupName VMScaleSetName WhatIf"
    ),
    "Approve-AzScheduledEvent": _parameter_names(
        """AcquirePolicyToken ChangeReference Confirm DefaultProfile ResourceGroupName ResourceName ResourceType
        ScheduledEventId WhatIf"""
    ),
    "Add-AzEnvironment": _parameter_names(
        "Name ARMEndpoint StorageEndpoint AzureKeyVaultDnsSuffix", _CONTEXT_PARAMETERS
    ),
    "Connect-AzAccount": _parameter_names(
        """AuthScope ContextName Credential Environment Force MaxContextPopulation ServicePrincipal
        SkipContextPopulation Subscription Tenant""",
        _CONTEXT_PARAMETERS,
    ),
    "ConvertTo-Json": _parameter_names("AsArray Compress Depth EnumsAsStrings EscapeHandling InputObject"),
    "ConvertTo-SecureString": _parameter_names("AsPlainText Force Key SecureKey String"),
    "Get-Content": _parameter_names(
        "Delimiter Encoding Exclude Filter Force Include LiteralPath Path Raw ReadCount Tail TotalCount Wait"
    ),
    "Import-Certificate": _parameter_names("CertStoreLocation Confirm FilePath WhatIf"),
    "New-Object": _parameter_names("ArgumentList Property TypeName"),
    "Start-Sleep": _parameter_names("Duration Milliseconds Seconds"),
}

SWITCHES = _word_set(
    """AllowInsecureRedirect AllowUnencryptedAuthentication AsArray AsJob AsPlainText Compress Confirm Debug
    DisableKeepAlive EnumsAsStrings FollowRelLink Force NoProxy Paginate PassThru PreserveAuthorizationOnRedirect
    PreserveHttpMethodOnRedirect ProxyUseDefaultCredentials Raw Redeploy Resume ServicePrincipal SkipCertificateCheck
    SkipContextPopulation SkipHeaderValidation SkipHttpErrorCheck UseBasicParsing UseDefaultCredentials Verbose Wait
    WaitForCompletion WhatIf"""
)

_HTTP_METHODS = _word_set("default get head post put delete trace options merge patch")
ALLOWED_VALUES: dict[tuple[str, str], frozenset[str]] = {
    ("Invoke-WebRequest", "Method"): _HTTP_METHODS,
    ("Invoke-RestMethod", "Method"): _HTTP_METHODS,
    ("Invoke-AzRestMethod", "Method"): _word_set("get post put patch delete"),
}

Evaluate = Callable[["PowerShellSession"], Any]
Cmdlet = Callable[[dict[str, Any], Any], Any]  # parameters and piped input → output

_CONSTANTS: dict[str, Any] = {"true": True, "false": False, "null": None}
_DEFAULT_JSON_DEPTH = 2


class UnsupportedPowerShell(Exception):
    """The script uses something that this interpreter does not support."""


class ScriptError(Exception):
    """The script threw an error."""


class BreakLoop(Exception):
    pass


class PowerShellSession:
    """The variables and cmdlets of a script. Names are compared without case."""

    def __init__(self, cmdlets: Mapping[str, Cmdlet]) -> None:
        self._cmdlets = {"ConvertTo-Json": _convert_to_json, **cmdlets}
        self._variables: dict[str, Any] = {}

    def set(self, name: str, value: Any) -> None:
        self._variables[name.lower()] = value

    def get(self, name: str) -> Any:
        if name.lower() in _CONSTANTS:
            return _CONSTANTS[name.lower()]
        if name.lower() not in self._variables:
            raise UnsupportedPowerShell(f"${name} was set nowhere")
        return self._variables[name.lower()]

    def call(self, name: str, given: dict[str, Any], piped: Any) -> Any:
        for parameter, value in given.items():
            allowed = ALLOWED_VALUES.get((name, parameter))
            if allowed is not None and str(value).lower() not in allowed:
                raise UnsupportedPowerShell(f"{name} -{parameter} takes no {value!r}")
        if name not in self._cmdlets:
            raise UnsupportedPowerShell(f"{name} cannot be run here")
        return self._cmdlets[name](given, piped)


def _convert_to_json(given: dict[str, Any], piped: Any) -> str:
    """Encode as JSON; rejects values nested deeper than `-Depth`, which PowerShell would flatten."""
    if _nesting(piped) > given.get("Depth", _DEFAULT_JSON_DEPTH):
        raise UnsupportedPowerShell("what is converted is deeper than -Depth says")
    return json.dumps(piped)


def _nesting(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return -1 if inner is None else 1 + max((_nesting(one) for one in inner), default=-1)


def member_of(value: Any, name: str) -> Any:
    """The member of this name; None, PowerShell's `$null`, if there is none."""
    if not isinstance(value, dict):
        return None
    return next((held for key, held in value.items() if key.lower() == name.lower()), None)


def text_of(value: Any) -> str:
    if isinstance(value, dict | list):
        raise UnsupportedPowerShell("a string would say of which type this is, and not what it holds")
    return "" if value is None else str(value)


def constant(value: Any) -> Evaluate:
    return lambda shell: value


def member_access(value: Evaluate, name: str) -> Evaluate:
    return lambda shell: member_of(value(shell), name)


def index_access(value: Evaluate, index: Evaluate) -> Evaluate:
    def held(shell: PowerShellSession) -> Any:
        inside, wanted = value(shell), index(shell)
        return inside[wanted] if isinstance(inside, list) else member_of(inside, wanted)

    return held


def assignment(name: str, members: list[str], value: Evaluate) -> Evaluate:
    def assign(shell: PowerShellSession) -> None:
        if not members:
            shell.set(name, value(shell))
            return
        inside = shell.get(name)
        for member in members[:-1]:
            inside = member_of(inside, member)
        if not isinstance(inside, dict) or members[-1] not in inside:
            raise UnsupportedPowerShell(f"${name} has no member {'.'.join(members)!r} that could be set")
        inside[members[-1]] = value(shell)

    return assign


def run_all(body: list[Evaluate], shell: PowerShellSession) -> None:
    for do in body:
        do(shell)


def break_loop(shell: PowerShellSession) -> None:
    raise BreakLoop


def raise_script_error(message: str) -> None:
    raise ScriptError(message)

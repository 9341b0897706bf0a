"""Cmdlets that our pages use, and the parameters that they have: PowerShell 7.4 and Az.Accounts 4, as documented."""

from __future__ import annotations

_COMMON = """Debug ErrorAction ErrorVariable InformationAction InformationVariable OutBuffer OutVariable
    PipelineVariable ProgressAction Verbose WarningAction WarningVariable"""
_WEB = """AllowInsecureRedirect AllowUnencryptedAuthentication Authentication Body Certificate CertificateThumbprint
    ConnectionTimeoutSeconds ContentType Credential CustomMethod DisableKeepAlive Form Headers HttpVersion InFile
    MaximumRedirection MaximumRetryCount Method NoProxy OperationTimeoutSeconds OutFile PassThru
    PreserveAuthorizationOnRedirect PreserveHttpMethodOnRedirect Proxy ProxyCredential ProxyUseDefaultCredentials
    Resume RetryIntervalSec SessionVariable SkipCertificateCheck SkipHeaderValidation SkipHttpErrorCheck SslProtocol
    Token TransferEncoding UnixSocket Uri UseBasicParsing UseDefaultCredentials UserAgent WebSession"""
_CONTEXT = "DefaultProfile Scope WhatIf Confirm"


def _words(*texts: str) -> frozenset[str]:
    return frozenset(" ".join(texts).split())


def _names(*texts: str) -> frozenset[str]:
    return _words(*texts, _COMMON)


PARAMETERS: dict[str, frozenset[str]] = {
    "Invoke-WebRequest": _names(_WEB),
    "Invoke-RestMethod": _names(_WEB, "FollowRelLink MaximumFollowRelLink ResponseHeadersVariable StatusCodeVariable"),
    "Invoke-AzRestMethod": _names(
        """ApiVersion AsJob Confirm DefaultProfile FinalResultFrom MaxPageSize Method Name NextLinkName PageableItemName
        Paginate Path Payload PollFrom ResourceGroupName ResourceId ResourceProviderName ResourceType SubscriptionId Uri
        WaitForCompletion WhatIf"""
    ),
    "Add-AzEnvironment": _names("Name ARMEndpoint StorageEndpoint AzureKeyVaultDnsSuffix", _CONTEXT),
    "Connect-AzAccount": _names(
        """AuthScope ContextName Credential Environment Force MaxContextPopulation ServicePrincipal
        SkipContextPopulation Subscription Tenant""",
        _CONTEXT,
    ),
    "ConvertTo-Json": _names("AsArray Compress Depth EnumsAsStrings EscapeHandling InputObject"),
    "ConvertTo-SecureString": _names("AsPlainText Force Key SecureKey String"),
    "Get-Content": _names(
        "Delimiter Encoding Exclude Filter Force Include LiteralPath Path Raw ReadCount Tail TotalCount Wait"
    ),
    "Import-Certificate": _names("CertStoreLocation Confirm FilePath WhatIf"),
    "New-Object": _names("ArgumentList Property TypeName"),
    "Start-Sleep": _names("Duration Milliseconds Seconds"),
}

SWITCHES = _words(
    """AllowInsecureRedirect AllowUnencryptedAuthentication AsArray AsJob AsPlainText Compress Confirm Debug
    DisableKeepAlive EnumsAsStrings FollowRelLink Force NoProxy Paginate PassThru PreserveAuthorizationOnRedirect
    PreserveHttpMethodOnRedirect ProxyUseDefaultCredentials Raw Resume ServicePrincipal SkipCertificateCheck
    SkipContextPopulation SkipHeaderValidation SkipHttpErrorCheck UseBasicParsing UseDefaultCredentials Verbose Wait
    WaitForCompletion WhatIf"""
)

_METHODS = _words("default get head post put delete trace options merge patch")
VALUES: dict[tuple[str, str], frozenset[str]] = {
    ("Invoke-WebRequest", "Method"): _METHODS,
    ("Invoke-RestMethod", "Method"): _METHODS,
    ("Invoke-AzRestMethod", "Method"): _words("get post put patch delete"),
}

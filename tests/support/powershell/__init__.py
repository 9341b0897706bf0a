"""Reads and runs the PowerShell that our pages use, where PowerShell is not installed.

    session = PowerShellSession({"Invoke-RestMethod": ask})
    run_script(text, session)

It rejects what it does not know: stricter than PowerShell, never laxer.
"""

from tests.support.powershell.interpreter import PowerShellSession, ScriptError, UnsupportedPowerShell
from tests.support.powershell.parser import run_script

__all__ = ["PowerShellSession", "ScriptError", "UnsupportedPowerShell", "run_script"]

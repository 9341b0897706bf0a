"""A READER OF POWERSHELL, as far as our pages use it: it runs their lines where there is no PowerShell to do so.

    shell = Shell({"Invoke-RestMethod": ask})
    run(text, shell)

What it does not know it refuses: it is stricter than PowerShell, never laxer. Never here: what a page should say.
"""

from forewarn.testing.powershell.parser import run
from forewarn.testing.powershell.shell import NotPowerShell, Shell, Thrown

__all__ = ["NotPowerShell", "Shell", "Thrown", "run"]
